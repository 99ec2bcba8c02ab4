package faults_test

import (
	"testing"

	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/integration/world"
)

// caught is, for each mutant, the scenario that shows what it breaks.
var caught = map[string]struct {
	scenario  scenario
	invariant history.Invariant
}{
	"fence_removed":            {suspendedWithReplies, history.ForGood},
	"committed_after_the_send": {killedBeforeItsClaimWasCommitted, history.OneEffect},
	"ambiguity_not_sticky":     {refusedAfterADeath(world.Keyed), history.True},
	"reaped_in_one_statement":  {settledWhileItIsReaped, history.ForGood},
	"doubt_repeated":           {killedHolding(world.Once), history.OneEffect},
	"loss_taken_for_unsent":    {killedHolding(world.Once), history.OneEffect},
	"panic_taken_for_unsent":   {panickedAfterSending(world.Once), history.OneEffect},
	"lease_not_asked":          {heartbeatHangs, history.True},
	"named_after_its_host":     {hostRestarts, history.OneEffect},
	"saga_not_asked":           {stepSlipsIn, history.BackToNothing},
}

// plays is how often a scenario may be played: which of two statements Postgres
// takes up first is not always in its hand.
const plays = 3

// What passes with the program must not pass with a program that lacks a guard:
// else it would show nothing.
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
