// Package faults_test injects faults into daemons of the real program, one after another, and compares three accounts
// of what happened.
package faults_test

import (
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/program"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// caught maps each mutant to the scenario that catches it, and to the invariant that the mutant breaks. The
// invariant is empty if the scenario itself sees the fault.
var caught = map[string]struct {
	scenario  scenario
	invariant history.Invariant
}{
	"fence_removed":            {suspendedWithReplies, history.ForGood},
	"committed_after_the_send": {killedBeforeItsClaimWasCommitted, history.OneEffect},
	"ambiguity_not_sticky":     {refusedAfterADeath(harness.Keyed), history.True},
	"reaped_in_one_statement":  {settledWhileItIsReaped, history.ForGood},
	"doubt_repeated":           {killedHolding(harness.Once), history.OneEffect},
	"loss_taken_for_unsent":    {killedHolding(harness.Once), history.OneEffect},
	"panic_taken_for_unsent":   {panickedAfterSending(harness.Once), history.OneEffect},
	"lease_not_asked":          {heartbeatHangs, history.True},
	"named_after_its_host":     {hostRestarts, history.OneEffect},
	"saga_not_asked":           {stepSlipsIn, history.BackToNothing},
	"http1_not_guarded":        {reusedConnectionDies(dispatchtest.TLSHTTP1), history.OneEffect},
	"window_from_the_last_try": {undoneTooLate, ""},
	"done_by_the_last_word":    {undoConfiguredLater, ""},
	"via_kept_without_doubt":   {fallbackThrottlesAndGoes, ""},
	"failover_loses_nothing":   {promotedBehind, history.OneEffect},
	"undo_taken_for_new":       {undoForgotten, history.OneEffect},
	"due_tenants_not_searched": {flooded, ""},
	"limit_of_a_search_alone":  {flooded, ""},
	"runs_in_due_order":        {crowded, ""},
	"closed_by_the_clock":      {closedBeforeAClaimThatDidNotSeeIt, ""},
}

// plays is how often a scenario may be played, because Postgres does not always run two statements in the wanted
// order.
const plays = 3

// A scenario that the program passes must fail with a program that lacks a guard. Otherwise the scenario would
// show nothing.
func TestEachMutantIsCaughtByAScenarioThatTheProgramPasses(t *testing.T) {
	t.Parallel()
	for _, mutant := range program.Mutants {
		t.Run(mutant.Name, func(t *testing.T) {
			t.Parallel()
			by, known := caught[mutant.Name]
			if !known {
				t.Fatal("no scenario is to catch it")
			}
			for range plays {
				if by.scenario.breaks(t, mutant.Name, by.invariant) {
					return
				}
			}
			t.Errorf("it was not seen to break this in %d plays: %s", plays, by.invariant)
		})
	}
}

// scenario injects a fault of the catalogue into a set-up.
type scenario struct {
	number int               // of the fault in the catalogue
	plan   dispatchtest.Plan // the provider's faults; nil for none
	play   func(t *testing.T, rig *harness.Rig) (times int)
	wrong  func(rig *harness.Rig) bool // a check beyond the accounts; nil for none

	// on replaces plan and play if the rig has a server of its own.
	on func(t *testing.T) (rig *harness.Rig, play func() (times int))
}

func (s scenario) begin(t *testing.T) (*harness.Rig, func() (times int)) {
	t.Helper()
	if s.on != nil {
		return s.on(t)
	}
	rig := harness.New(t, s.plan)
	return rig, func() int { return s.play(t, rig) }
}

// holds plays the scenario with the program, and checks that nothing was lost or doubled.
func (s scenario) holds(t *testing.T) {
	t.Helper()
	rig, play := s.begin(t)
	fault.Injected(t, s.number, play())
	rig.AwaitRest()
	rig.Check()
	if s.wrong != nil && s.wrong(rig) {
		t.Error("the scenario has seen what must not be")
	}
}

// breaks plays the scenario with a mutant, which may never come to rest, and reports whether it breaks the
// invariant.
func (s scenario) breaks(t *testing.T, mutant string, invariant history.Invariant) bool {
	t.Helper()
	rig, play := s.begin(t)
	rig.Broken(mutant)
	if times := play(); times == 0 {
		t.Fatal("nothing was injected")
	}
	broken := func() bool {
		if s.wrong != nil && s.wrong(rig) {
			return true
		}
		return slices.ContainsFunc(rig.Violations(), func(v history.Violation) bool { return v.Invariant == invariant })
	}
	drainertest.Eventually(t, "it rests, or was seen to break something", func() bool { return rig.Rests() || broken() })
	return broken()
}

// await waits until a channel is closed.
func await(t *testing.T, what string, closed <-chan struct{}) {
	t.Helper()
	select {
	case <-closed:
	case <-time.After(drainertest.Patience):
		t.Fatalf("never happened: %s", what)
	}
}

func arm(points string) string { return "DRAINER_FAILPOINTS=" + points }

func enqueueOfEach(rig *harness.Rig, intents int) {
	for _, tool := range everyClass {
		rig.Enqueue(tool, intents)
	}
}

// lost counts the rows whose worker was declared dead.
func lost(rig *harness.Rig) int {
	return rig.Count(`SELECT count(*) FROM outbox.attempt WHERE outcome = 'lost'`)
}

func inProgress(rig *harness.Rig) int {
	return rig.Count(`SELECT count(*) FROM outbox.status WHERE status = 'in_progress'`)
}
