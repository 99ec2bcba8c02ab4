package faults_test

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/world"
)

func TestAPayloadThatKillsEveryWorkerEndsAtItsLastTry(t *testing.T) {
	t.Parallel()
	poisoned().holds(t)
}

// poisoned has the provider, at each request for one intent, take its worker
// away and never answer.
func poisoned() scenario {
	const tries = 3
	poison := world.Intent("poison", 1, world.Keyed)
	struck := make(chan struct{}, tries)
	plan := func(key string, _ int) dispatchtest.Fault {
		if key != poison.IdempotencyKey() {
			return dispatchtest.None
		}
		struck <- struct{}{}
		return dispatchtest.HangBefore
	}
	return scenario{number: 14, plan: plan, play: func(t *testing.T, w *world.World) (kills int) {
		w.Reconfigure(func(config string) string { // of the first provider, whose only intent is the poison
			return strings.Replace(patient(config), "max_attempts: 50", "max_attempts: 3", 1)
		})
		w.Step("poison", 1, world.Keyed)
		for range tries {
			w.Enqueue(world.Set, 10)
			victim := w.Start()
			drainertest.Eventually(t, "the poison strikes", func() bool { return len(struck) > 0 })
			<-struck
			victim.Kill()
			kills++
		}
		w.Start()
		w.AwaitRest()
		if unknown := w.Count(`SELECT count(*) FROM outbox.status WHERE agent_run_id = 'poison' AND status = 'unknown'`); unknown != 1 {
			t.Error("nobody is told that the poison's outcome is unknown")
		}
		if passed := w.Count(`SELECT count(*) FROM outbox.status WHERE status = 'completed'`); passed != tries*10 {
			t.Errorf("%d others passed, want %d", passed, tries*10)
		}
		return kills
	}}
}
