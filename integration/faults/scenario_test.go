package faults_test

import (
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/world"
)

// scenario is a fault and what it happens to.
type scenario struct {
	number int               // in the catalogue
	plan   dispatchtest.Plan // of the provider; nil never fails
	play   func(t *testing.T, w *world.World) (times int)
}

// holds plays the scenario with the program, which must come out of it unharmed.
func (s scenario) holds(t *testing.T) {
	t.Helper()
	w := world.New(t, s.plan)
	fault.Injected(t, s.number, s.play(t, w))
	w.AwaitRest()
	w.Check()
}

// breaks plays it with a mutant, which may never come to rest, and reports
// whether it breaks that invariant.
func (s scenario) breaks(t *testing.T, mutant string, invariant history.Invariant) bool {
	t.Helper()
	w := world.New(t, s.plan).Broken(mutant)
	if times := s.play(t, w); times == 0 {
		t.Fatal("nothing was injected")
	}
	broken := func() bool {
		return slices.ContainsFunc(w.Violations(), func(v history.Violation) bool { return v.Invariant == invariant })
	}
	drainertest.Eventually(t, "it rests, or was seen to break something", func() bool { return w.Rests() || broken() })
	return broken()
}

// await is for what a channel's close tells.
func await(t *testing.T, what string, told <-chan struct{}) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(drainertest.Patience):
		t.Fatalf("never happened: %s", what)
	}
}

func arm(points string) string { return "DRAINER_FAILPOINTS=" + points }

func enqueueOfEach(w *world.World, intents int) {
	for _, tool := range everyClass {
		w.Enqueue(tool, intents)
	}
}

// lost counts the rows whose worker was taken for dead.
func lost(w *world.World) int {
	return w.Count(`SELECT count(*) FROM outbox.attempt WHERE outcome = 'lost'`)
}

func inProgress(w *world.World) int {
	return w.Count(`SELECT count(*) FROM outbox.status WHERE status = 'in_progress'`)
}
