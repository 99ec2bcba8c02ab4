package demo

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// flawless is three intents with one effect each.
func flawless() facts {
	fine := func(key string) intent {
		return intent{Key: key, Status: "completed", Answered: true, Places: 1, HasState: true}
	}
	return facts{
		wanted:  3,
		intents: []intent{fine("a"), fine("b"), fine("c")},
		ledger: dispatchtest.Audit{
			Requests: map[string]int{"a": 2, "b": 1, "c": 1},
			Effects:  map[string]int{"a": 1, "b": 1, "c": 1},
			Faults:   map[dispatchtest.Fault]int{dispatchtest.None: 3, dispatchtest.DropAfter: 1},
		},
		counts: counts{States: 3, Attempts: 4, Retries: 1},
	}
}

func TestAuditPassesWhereEveryIntentHasOneEffect(t *testing.T) {
	t.Parallel()
	r := judge(flawless())
	if !r.Passed || len(r.Violations) > 0 {
		t.Errorf("failed: %v", r.Violations)
	}
	if r.Intents != 3 || r.Completed != 3 || r.Effects != 3 || r.Requests != 4 || r.Attempts != 4 || r.Retries != 1 {
		t.Errorf("miscounted: %+v", r)
	}
}

func TestAuditCatches(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*facts)
		count func(Report) int
		want  string
	}{
		"an effect that happened twice": {
			func(f *facts) { f.ledger.Effects["a"] = 2 },
			func(r Report) int { return r.DuplicateEffects }, "happened again",
		},
		"a completed intent without an effect": {
			func(f *facts) { delete(f.ledger.Effects, "b") },
			func(r Report) int { return r.Lost }, "than the ledger says",
		},
		"an intent that was never settled": {
			func(f *facts) { f.intents[2].Status = "" },
			func(r Report) int { return r.Lost }, "than they should",
		},
		"an intent that failed": {
			func(f *facts) { f.intents[2].Status = "failed"; delete(f.ledger.Effects, "c") },
			func(r Report) int { return r.Lost }, "than they should",
		},
		"a response that was not stored": {
			func(f *facts) { f.intents[2].Answered = false },
			func(r Report) int { return r.Lost }, "stored response",
		},
		"an effect that nobody committed": {
			func(f *facts) { f.ledger.Effects["d"] = 1 },
			func(r Report) int { return r.PhantomEffects }, "no committed intent",
		},
		"an effect that carried no key": {
			func(f *facts) { f.ledger.Effects[""] = 1 },
			func(r Report) int { return r.PhantomEffects }, "no committed intent",
		},
		"an intent in two places": {
			func(f *facts) { f.intents[0].Places = 2 },
			func(r Report) int { return r.Misplaced }, "exactly one",
		},
		"an intent in no place": {
			func(f *facts) { f.intents[0].Places = 0 },
			func(r Report) int { return r.Misplaced }, "exactly one",
		},
		"an intent without the agent's state": {
			func(f *facts) { f.intents[0].HasState, f.counts.States = false, 2 },
			func(r Report) int { return r.HalfCommitted }, "without the other",
		},
		"an agent's state without its intent": {
			func(f *facts) { f.counts.States = 4 },
			func(r Report) int { return r.HalfCommitted }, "without the other",
		},
		"a key of two payloads": {
			func(f *facts) { f.counts.Collisions = 1 },
			func(r Report) int { return r.KeyCollisions }, "another payload",
		},
		"an intent that was not committed at all": {
			func(f *facts) { f.wanted = 4 },
			func(r Report) int { return 4 - r.Intents }, "meant to commit",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spoilt := flawless()
			c.spoil(&spoilt)
			r := judge(spoilt)
			if r.Passed || len(r.Violations) != 1 || !strings.Contains(r.Violations[0], c.want) {
				t.Errorf("passed %t with %q, want one violation with %q", r.Passed, r.Violations, c.want)
			}
			if got := c.count(r); got != 1 {
				t.Errorf("counted %d, want 1", got)
			}
		})
	}
}
