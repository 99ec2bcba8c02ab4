package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// narrow returns a screen of 80 columns that writes to a buffer.
func narrow(to *bytes.Buffer) screen {
	return screen{Writer: to, columns: 80, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
}

func linesOf(t *testing.T, shown table, on screen) []string {
	t.Helper()
	var printed bytes.Buffer
	on.Writer = &printed
	if err := shown.show(on); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(printed.String(), "\n"), "\n")
}

func wideIntents() table {
	outcome, due := "ambiguous", time.Date(2026, 3, 1, 12, 5, 0, 0, time.UTC)
	return intentTable([]operator.Intent{{
		IntentID: 1_234_567, AgentRunID: "0192f3a4-7d2b-7c11-9e7f-3f2a91c0d7aa", StepID: "charge-the-customer", ToolName: "stripe/create_charge",
		BusinessScope: "invoice_442", Status: "compensation_failed", Attempts: 3, LastOutcome: &outcome, CreatedAt: due.Add(-time.Hour), NextAttemptAt: &due,
	}, {IntentID: 2, AgentRunID: "run-1", StepID: "s", ToolName: "a/b", BusinessScope: "x", Status: "completed", CreatedAt: due}})
}

func TestEveryListFitsIn80Columns(t *testing.T) {
	t.Parallel()
	text, many, timeline := strings.Repeat("the provider has lost its records of that day ", 3), 100_000_000, 12
	for name, shown := range map[string]table{
		"intents":   wideIntents(),
		"incidents": tableOf(incidentHeading, []operator.Incident{{IntentID: 99, Kind: "reversal_window_expired", State: "acknowledged", AgentRunID: "0192f3a4-7d2b-7c11-9e7f-3f2a91c0d7aa", Detail: &text, Reason: &text}}, incidentRow),
		"sagas":     sagaTable(operator.Saga{AgentRunID: "0192f3a4-7d2b-7c11-9e7f-3f2a91c0d7aa", State: "compensation_failed", Reason: &text}),
		"tenants": tenantTable([]operator.Tenant{{
			Name: "a-tenant-with-a-long-name", Role: "the_role_of_that_tenant", Namespace: "namespace-of-that-tenant", Weight: 100,
			MaxDue: &many, MaxBytes: &many, MaxRate: &many, MaxInFlight: &many, Due: many, Bytes: many, InFlight: many, InFlightBounded: true,
		}}),
		"history": historyTable([]operator.History{{
			History: 12, Timeline: &timeline, LSN: new("16/B374D848"), BeganAt: time.Date(2026, 2, 1, 12, 0, 0, 0, time.UTC), SeenAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
			Change: new("timeline 12 follows timeline 11"), AcceptedBy: new("operator:on-call-of-the-week"), Reason: &text,
		}}),
		"providers": providerTable(operator.Provider{Provider: "a-provider-with-a-long-name", Paused: true, Breaker: "half_open", Reason: &text}),
	} {
		for _, line := range linesOf(t, shown, narrow(nil)) {
			if displayWidth(line) > 80 {
				t.Errorf("%s: %d columns: %q", name, displayWidth(line), line)
			}
		}
	}
}

// Without a terminal, a row is one line, and nothing is left out.
func TestAFileGetsWholeLines(t *testing.T) {
	t.Parallel()
	lines := linesOf(t, wideIntents(), screen{now: time.Now()})
	if len(lines) != 3 || !strings.Contains(lines[1], "0192f3a4-7d2b-7c11-9e7f-3f2a91c0d7aa") {
		t.Errorf("got %q", lines)
	}
}

func TestWideCharactersAreAligned(t *testing.T) {
	t.Parallel()
	shown := table{[]string{"RUN", "STATUS"}, [][]any{{"注文-7", "pending"}, {"re\u0301sume\u0301", "failed"}, {"run-1", "completed"}}}
	for _, line := range linesOf(t, shown, narrow(nil))[1:] {
		before, _, _ := strings.Cut(line, strings.Fields(line)[1])
		if displayWidth(before) != 8 {
			t.Errorf("the second column of %q begins at %d", line, displayWidth(before))
		}
	}
}

func TestATimeTellsItsZoneAndItsAge(t *testing.T) {
	t.Parallel()
	on := narrow(nil)
	for want, at := range map[string]time.Time{
		"(90s ago)":  on.now.Add(-90 * time.Second),
		"(3m ago)":   on.now.Add(-3 * time.Minute),
		"(in 5h)":    on.now.Add(5 * time.Hour),
		"(400d ago)": on.now.Add(-400 * 24 * time.Hour),
	} {
		lines := linesOf(t, table{[]string{"OPENED"}, [][]any{{at}}}, on)
		zone := on.zone().String()
		if !strings.HasPrefix(lines[0], "OPENED ("+zone+")") || !strings.HasSuffix(lines[1], want) {
			t.Errorf("got %q, want %q and the zone %s", lines, want, zone)
		}
	}
}

func TestColourIsForATerminalThatWantsIt(t *testing.T) {
	t.Parallel()
	shown := table{[]string{"STATUS"}, [][]any{{state("failed")}}}
	on := narrow(nil)
	if lines := linesOf(t, shown, on); strings.Contains(strings.Join(lines, ""), "\x1b") {
		t.Errorf("without: %q", lines)
	}
	on.colours = true
	if lines := linesOf(t, shown, on); lines[1] != "\x1b[31mfailed\x1b[0m" {
		t.Errorf("with: %q", lines)
	}
}

func TestATextIsWrappedAtItsSpaces(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                "",
		"short":           "short",
		"two words":       "two|words",
		"a bcdefghijkl m": "a|bcdefgh|ijkl m",
		"注文注文注文":          "注文注|文注文",
	} {
		if got := strings.Join(wrap(text, 7), "|"); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
