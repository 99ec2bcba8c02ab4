package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
)

// Agents choose the names of tools, and a table shows them on a terminal.
func TestWhatAgentsNameCommandsNoTerminal(t *testing.T) {
	t.Parallel()
	const hostile = "pay\x1b[2J\x1b]52;c;cm0=\a\r\nstripe\t0\u009b\u202e"
	var printed bytes.Buffer
	overview := operator.Overview{Providers: []operator.ProviderOverview{{Provider: hostile}}}
	if err := writeOverview(&printed, overview); err != nil {
		t.Fatal(err)
	}
	if text := strings.ReplaceAll(printed.String(), "\n", ""); strings.ContainsFunc(text, isUnprintable) {
		t.Errorf("it prints %q", text)
	}
	if !strings.Contains(printed.String(), `pay\x1b[2J`) || strings.Count(printed.String(), "\n") > 2 {
		t.Errorf("it does not name the provider in one line: %q", printed.String())
	}
}

func TestStatusShowsWhatWaitsAndWhatIsPaused(t *testing.T) {
	t.Parallel()
	url, db := newOutbox(t)
	drainertest.Exec(t, db, `SELECT outbox.enqueue('r', 's', 'bank/pay', 'b', '{}')`)
	drainertest.Exec(t, db, `INSERT INTO outbox.provider (name, paused) VALUES ('shop', true)`)
	got := run(t, "status", "--database-url", url)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	if got.code != exitOK || len(lines) != 3 {
		t.Fatalf("exit %d, %q, %s", got.code, got.stdout, got.stderr)
	}
	for i, want := range []string{"PROVIDER PENDING DUE IN PROGRESS", "bank 1 1 0", "shop 0 0 0 0s 0s true closed"} {
		if line := strings.Join(strings.Fields(lines[i]), " "); !strings.HasPrefix(line, want) {
			t.Errorf("line %d is %q, want %q", i, line, want)
		}
	}
}
