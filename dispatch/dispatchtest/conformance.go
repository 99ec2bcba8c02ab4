package dispatchtest

import (
	"testing"

	"github.com/agentoutbox/drainer/dispatch/conformance"
)

// Conform holds an adapter to what the engine takes for granted, one subtest a
// trial, each with a counterpart and an adapter of its own.
func Conform(t *testing.T, subject Subject) {
	t.Helper()
	t.Run("excuses", func(t *testing.T) { report(t, subject.before(t).Excuses()) })
	t.Run("warming up", func(t *testing.T) { subject.before(t).Warm() })
	for _, trial := range subject.before(t).Trials() {
		t.Run(trial.Name, func(t *testing.T) {
			report(t, subject.before(t).Run(trial)...)
		})
	}
}

func report(t *testing.T, checks ...conformance.Check) {
	t.Helper()
	asked := false
	for _, check := range checks {
		asked = asked || check.Verdict != conformance.Skipped
		switch check.Verdict {
		case conformance.OK:
		case conformance.Failed, conformance.NoVerdict:
			t.Errorf("%s: seen: %s; expected: %s; %s", check.Name, check.Seen, check.Expected, check.Advice)
		default:
			t.Logf("%s: %s: %s", check.Name, check.Verdict, check.Advice)
		}
	}
	if !asked {
		t.SkipNow()
	}
}
