package saga_test

import (
	"testing"

	"github.com/agentoutbox/drainer/model/explore"
	"github.com/agentoutbox/drainer/model/explore/exploretest"
	"github.com/agentoutbox/drainer/model/saga"
)

// Each row takes something away and names the promise that this breaks.
var mutants = []struct {
	without saga.Guards
	of      saga.Model
	breaks  string
}{
	{saga.EnqueueLooks, once, saga.ClosedIsLoud},
	{saga.ClaimLooks, once, saga.ClosedIsShut},
	{saga.ClaimAsks, keyed, saga.NetZero},
	{saga.FailureBegins, once, saga.FailureIsBack},
	{saga.HaltWaits, once, saga.NothingStands},
	{saga.OpenComesFirst, once, saga.NothingStands},
	{saga.NewestFirst, once, saga.NewestIsFirst},
	{saga.OnePass, once, saga.ResolvedRests},
	{saga.OnePass | saga.OneUndo, unattended, saga.UndoneOnce},
	{saga.KeyedUndo, keyed, saga.UndoneOnce},
	{saga.UndoIsNoted | saga.NotesLater, unattended, explore.NoDeadlock},
	{saga.NotesLater, once, explore.ComesToRest},
	{saga.FailureIsTold, once, saga.FailureTold},
	{saga.LateIsTold, once, saga.NetZero},
	{saga.LateWaits, once, saga.NetZero},
	{saga.ResolveWaits, once, saga.ResolvedRests},
}

func TestEachGuardKeepsAPromise(t *testing.T) {
	t.Parallel()
	var needed saga.Guards
	for _, mutant := range mutants {
		needed |= mutant.without
		t.Run(mutant.without.String(), func(t *testing.T) {
			t.Parallel()
			model := mutant.of
			model.Without = mutant.without
			exploretest.Breaks(t, model.Explored(), mutant.without.String(), mutant.breaks)
		})
	}
	if needed != saga.AllGuards() {
		t.Errorf("nobody misses %s", saga.AllGuards()&^needed)
	}
}

// Where two guards stand, either of them is enough.
func TestOneOfTwoGuardsIsEnough(t *testing.T) {
	t.Parallel()
	for _, guard := range []saga.Guards{saga.OnePass, saga.OneUndo, saga.UndoIsNoted, saga.NotesLater} {
		t.Run(guard.String(), func(t *testing.T) {
			t.Parallel()
			model := unattended
			model.Without = guard
			exploretest.Holds(t, model.Explored())
		})
	}
}
