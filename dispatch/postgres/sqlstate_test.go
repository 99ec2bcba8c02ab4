package postgres

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestWhatARefusalProves(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		severity, state string
		outcome         dispatch.Outcome
	}{
		"data":                        {"ERROR", "22001", dispatch.Rejected},
		"NUL in a payload":            {"ERROR", "22P05", dispatch.Rejected},
		"a constraint":                {"ERROR", "23505", dispatch.Rejected},
		"a view's check":              {"ERROR", "44000", dispatch.Rejected},
		"too large a row":             {"ERROR", "54000", dispatch.Rejected},
		"a code of one's own":         {"ERROR", "SHOP1", dispatch.Rejected},
		"integrity, at the end":       {"ERROR", "40002", dispatch.Rejected},
		"deadlock":                    {"ERROR", "40P01", dispatch.Throttled},
		"another's lock":              {"ERROR", "55P03", dispatch.Throttled},
		"too many connections":        {"ERROR", "53300", dispatch.Throttled},
		"a timeout of the server":     {"ERROR", "57014", dispatch.Throttled},
		"a standby":                   {"ERROR", "25006", dispatch.Throttled},
		"no such table":               {"ERROR", "42P01", dispatch.Throttled},
		"no such schema":              {"ERROR", "3F000", dispatch.Throttled},
		"a plan of an older table":    {"ERROR", "0A000", dispatch.Throttled},
		"what a function may not do":  {"ERROR", "2F002", dispatch.Throttled},
		"a pooler forgot a statement": {"ERROR", "26000", dispatch.Throttled},
		"completion is unknown":       {"ERROR", "40003", dispatch.Ambiguous},
		"a pooler lost the server":    {"FATAL", "08P01", dispatch.Ambiguous},
		"the same, as an error":       {"ERROR", "08006", dispatch.Ambiguous},
		"an internal error":           {"ERROR", "XX000", dispatch.Ambiguous},
		"shutting down":               {"FATAL", "57P01", dispatch.Ambiguous},
		"a panic":                     {"PANIC", "23505", dispatch.Ambiguous},
		"no state":                    {"ERROR", "", dispatch.Ambiguous},
	} {
		got := refused(&pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: test.severity, Code: test.state})
		if got.Outcome != test.outcome {
			t.Errorf("%s: %s, want %s", name, got.Outcome, test.outcome)
		}
		if ofFunction := slices.Contains([]string{"42P01", "3F000", "0A000", "2F002"}, test.state); got.OfOperation != ofFunction {
			t.Errorf("%s: it speaks for this function alone: %t, want %t", name, got.OfOperation, ofFunction)
		}
	}
}

func TestAnErrorClassIsNotThePeersToChoose(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{"23505": "sqlstate_23505", "40P01": "sqlstate_40p01", "": "protocol", "2350": "protocol", "2 ;--": "protocol", "é123": "protocol"} {
		if got := stateClass(state); got != want {
			t.Errorf("%q: %s, want %s", state, got, want)
		}
	}
}
