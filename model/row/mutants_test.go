package row_test

import (
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/explore"
	"github.com/agentoutbox/drainer/model/explore/exploretest"
	"github.com/agentoutbox/drainer/model/row"
)

const (
	natural = dispatch.NaturallyIdempotent
	keyed   = dispatch.KeyIdempotent
	once    = dispatch.NonIdempotent
)

// Each row takes something away and names the promise that this breaks.
var mutants = []struct {
	without row.Guards
	of      row.Model
	breaks  string
}{
	{row.ClaimFences | row.AttemptEndsOnce, row.Model{Class: natural}, row.OnePlace},
	{row.LockBeforeRead | row.AttemptEndsOnce, row.Model{Class: once, Batched: true, Heard: true}, row.OnePlace},
	{row.AttemptEndsOnce, row.Model{Class: natural, Batched: true}, row.OnePlace},
	{row.SettleBeforeFinish, row.Model{Class: keyed}, row.OnePlace},
	{row.RecoveryPoint, row.Model{Class: once}, row.OneRequest},
	{row.RecoveryPoint, row.Model{Class: keyed}, row.FailedIsNot},
	{row.LostLeavesDoubt, row.Model{Class: once}, row.OneRequest},
	{row.LostLeavesDoubt, row.Model{Class: keyed}, row.FailedIsNot},
	{row.ReapsOrphans, row.Model{Class: keyed}, explore.NoDeadlock},
	{row.ReclaimsForgotten, row.Model{Class: natural}, explore.ComesToRest},
	{row.KeepsRemembered, row.Model{Class: once}, row.OneRequest},
	{row.FreshIdentity, row.Model{Class: once}, row.OneRequest},
	{row.LeaseBeforeSend, row.Model{Class: once, Lookup: true}, row.FailedIsNot},
	{row.StickyDoubt, row.Model{Class: keyed}, row.FailedIsNot},
	{row.TrueClass, row.Model{Class: once}, row.OneRequest},
	{row.TrueClass, row.Model{Class: keyed}, row.OneEffect},
	{row.KeyLife, row.Model{Class: keyed}, row.OneEffect},
	{row.AskedAtSend, row.Model{Class: keyed}, row.OneEffect},
	{row.DrainedLookup, row.Model{Class: once, Lookup: true}, row.FailedIsNot},
	{row.LateEvidence, row.Model{Class: once}, row.EvidenceCounts},
	{row.UnknownIsTold, row.Model{Class: once}, row.DoubtIsTold},
	{row.OperatorFences, row.Model{Class: keyed}, row.OnePlace},
	{row.OperatorTakesRow, row.Model{Class: keyed}, row.OnePlace},
}

func TestEachGuardKeepsAPromise(t *testing.T) {
	t.Parallel()
	var needed row.Guards
	for _, mutant := range mutants {
		needed |= mutant.without
		t.Run(mutant.without.String()+" of "+string(mutant.of.Class), func(t *testing.T) {
			t.Parallel()
			model := mutant.of
			model.Without = mutant.without
			exploretest.Breaks(t, model.Explored(), mutant.without.String(), mutant.breaks)
		})
	}
	if needed != row.AllGuards() {
		t.Errorf("nobody misses %s", row.AllGuards()&^needed)
	}
}

// Where two guards stand, either of them is enough: the database keeps both.
func TestOneOfTwoGuardsIsEnough(t *testing.T) {
	t.Parallel()
	for _, model := range []row.Model{
		{Class: natural, Without: row.ClaimFences},
		{Class: natural, Without: row.AttemptEndsOnce},
		{Class: once, Batched: true, Heard: true, Without: row.LockBeforeRead},
		{Class: once, Batched: true, Heard: true, Without: row.AttemptEndsOnce},
	} {
		t.Run(model.Without.String()+" of "+string(model.Class), func(t *testing.T) {
			t.Parallel()
			exploretest.Holds(t, model.Explored())
		})
	}
}
