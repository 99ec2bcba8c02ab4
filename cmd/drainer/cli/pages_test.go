package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
)

// The end of a list says what to type for the next page, until there is none.
func TestTheEndOfAListLeadsToTheNextPage(t *testing.T) {
	t.Parallel()
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run ' || n, 's', 'sim/act', 'b', '{}' FROM generate_series(1, 3) n`)
	drainertest.Exec(t, db, `INSERT INTO outbox.saga (agent_run_id, begun_at) SELECT agent_run_id, now() - id * interval '1 hour' FROM outbox.intent`)
	drainertest.Exec(t, db, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id) SELECT 'outcome_unknown', id, agent_run_id FROM outbox.intent`)
	for _, test := range []struct {
		args []string
		more string
	}{
		{[]string{"intents", "list", "--tool", "sim/act", "--since", "2h", "--limit", "2"}, "  drainer intents list --limit 2 --since 2h --tool sim/act --cursor 2\n"},
		{[]string{"incidents", "list", "--all", "--limit", "2"}, "  drainer incidents list --all --limit 2 --cursor 2\n"},
		{[]string{"sagas", "list", "--limit", "2"}, "  drainer sagas list --limit 2 --cursor 'run 2'\n"},
	} {
		got := run(t, append(test.args, "--database-url", url)...)
		if got.code != exitOK || !strings.Contains(got.stdout, "\nMore:\n"+test.more) {
			t.Errorf("%v: %+v, want %q", test.args, got, test.more)
		}
		_, cursor, _ := strings.Cut(strings.TrimSpace(test.more), " --cursor ")
		last := run(t, append(test.args, "--cursor", strings.Trim(cursor, "'"), "--database-url", url)...)
		if last.code != exitOK || strings.Contains(last.stdout, "More:") || !strings.Contains(last.stdout, "run ") {
			t.Errorf("%v, the last page: %+v", test.args, last)
		}
	}
	got := run(t, "intents", "list", "--limit", "2", "-o", "json", "--database-url", url)
	if !strings.HasSuffix(got.stdout, "]\n") || !strings.Contains(got.stderr, "--cursor 2") {
		t.Errorf("JSON: %+v", got)
	}
}

func TestATimeIsAgoOrAPointInTime(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{
		"2h":                   time.Now().Add(-2 * time.Hour),
		"7d":                   time.Now().Add(-7 * 24 * time.Hour),
		"2026-01-31":           time.Date(2026, 1, 31, 0, 0, 0, 0, time.Local),
		"2026-01-31 15:04":     time.Date(2026, 1, 31, 15, 4, 0, 0, time.Local),
		"2026-01-31T15:04:05Z": time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC),
	} {
		var got time.Time
		if err := (&instant{at: &got}).Set(text); err != nil || got.Sub(want).Abs() > time.Minute {
			t.Errorf("%s is %v (%v), want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-2h", "yesterday", "2026-13-01"} {
		if err := (&instant{at: new(time.Time)}).Set(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
