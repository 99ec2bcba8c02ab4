package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

// suggestions returns the answer to a shell that completes the last word of a command line.
func suggestions(t *testing.T, args ...string) []string {
	t.Helper()
	got := run(t, append([]string{"__complete"}, args...)...)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if got.code != exitOK || !strings.HasPrefix(lines[len(lines)-1], ":") {
		t.Fatalf("%v: %+v", args, got)
	}
	return lines[:len(lines)-1]
}

func TestAShellSuggestsWhatIsThere(t *testing.T) {
	t.Parallel()
	file := writeValid(t)
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `SELECT outbox.enqueue('run-' || n, 's', 'bank/pay', 'b', '{}') FROM generate_series(1, 2) n`)
	drainertest.Exec(t, db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('outcome_unknown', 1, 'run-1')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.saga (agent_run_id) VALUES ('run-2')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.provider (name) VALUES ('bank')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.tool (name) VALUES ('bank/pay')`)
	configured, connected := []string{"--config", file}, []string{"--database-url", url}
	for _, test := range []struct {
		from, line []string
		want       []string
	}{
		{configured, []string{"providers", "pause", ""}, []string{"stripe"}},
		{connected, []string{"providers", "pause", ""}, []string{"bank"}},
		{configured, []string{"intents", "list", "--tool", "stripe/c"}, []string{"stripe/create_charge\tkey_idempotent"}},
		{connected, []string{"intents", "list", "--tool", ""}, []string{"bank/pay"}},
		{nil, []string{"intents", "list", "--status", "comp"}, []string{"completed", "compensated", "compensation_failed"}},
		{nil, []string{"intents", "cancel", "--status", ""}, []string{"pending"}},
		{connected, []string{"intents", "show", ""}, []string{"2\tpending, bank/pay", "1\tpending, bank/pay"}},
		{connected, []string{"incidents", "ack", ""}, []string{"1\topen, outcome_unknown"}},
		{connected, []string{"incidents", "ack", "1", ""}, nil},
		{connected, []string{"runs", "cancel", "run-"}, []string{"run-1", "run-2"}},
		{connected, []string{"runs", "cancel", ""}, []string{"run-2", "run-1"}},
		{connected, []string{"sagas", "show", ""}, []string{"run-2\tbegun"}},
	} {
		if got := suggestions(t, slices.Concat(test.from, test.line)...); !slices.Equal(got, test.want) {
			t.Errorf("%v: got %q, want %q", test.line, got, test.want)
		}
	}
}

// A shell waits, and shows what is said: neither may get in the way.
func TestWhatCannotBeReadSuggestsNothing(t *testing.T) {
	t.Parallel()
	for _, from := range [][]string{
		{"--database-url", "postgres://127.0.0.1:1/none"}, {"--database-url", "nonsense"}, {"--config", "/nope.yaml"},
	} {
		for _, line := range [][]string{{"intents", "show", ""}, {"providers", "pause", ""}, {"intents", "list", "--tool", ""}} {
			if got := suggestions(t, slices.Concat(from, line)...); len(got) != 0 {
				t.Errorf("%v: %q", from, got)
			}
		}
	}
}

func TestHelpSaysHowToGetSuggestions(t *testing.T) {
	t.Parallel()
	got := run(t, "--help")
	for _, want := range []string{"completion ", "See what is wrong:"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("it lacks %q:\n%s", want, got.stdout)
		}
	}
	for line := range strings.Lines(got.stdout) {
		if len(line) > 81 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
}
