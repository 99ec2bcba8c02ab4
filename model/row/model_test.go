package row_test

import (
	"fmt"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/model/explore"
	"github.com/agentoutbox/drainer/model/row"
)

// classes has the classes with different decisions. Those of read_only are the same as those of naturally_idempotent.
var classes = dispatch.Classes()[1:]

// batches reports whether a model of this class has claims with another row beside this one. Together with the ages of a
// key there would be too many states, and the two have nothing to do with each other.
func batches(class dispatch.Class) bool { return class != dispatch.KeyIdempotent }

func TestNoOrderOfEventsBreaksAPromise(t *testing.T) {
	t.Parallel()
	holdsForEachTool(t, func(class dispatch.Class, lookup bool) row.Model {
		return row.Model{Class: class, Lookup: lookup, Batched: batches(class)}
	})
}

// A database that lost commits brings back rows that were sent.
func TestLostCommitsBreakNoPromise(t *testing.T) {
	t.Parallel()
	holdsForEachTool(t, func(class dispatch.Class, lookup bool) row.Model {
		return row.Model{Class: class, Lookup: lookup, RepliesArrive: true, LosesCommits: true}
	})
}

func holdsForEachTool(t *testing.T, of func(class dispatch.Class, lookup bool) row.Model) {
	t.Helper()
	for _, class := range classes {
		for _, lookup := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lookup %t", class, lookup), func(t *testing.T) {
				t.Parallel()
				report := explore.Holds(t, of(class, lookup).Explored())
				t.Logf("%s, lookup %t: %d states, %d steps", class, lookup, report.States, report.Steps)
			})
		}
	}
}

const (
	natural = dispatch.NaturallyIdempotent
	keyed   = dispatch.KeyIdempotent
	once    = dispatch.NonIdempotent
)

// Each mutant takes guards away and names the promise that this breaks.
var mutants = []struct {
	without row.Guards
	of      row.Model
	breaks  string
}{
	{row.ClaimFences | row.AttemptEndsOnce, row.Model{Class: natural}, row.OnePlace},
	{row.LockBeforeRead | row.AttemptEndsOnce, row.Model{Class: once, Batched: true, RepliesArrive: true}, row.OnePlace},
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
	{row.UnknownIsReported, row.Model{Class: once}, row.DoubtIsTold},
	{row.OperatorFences, row.Model{Class: keyed}, row.OnePlace},
	{row.OperatorTakesRow, row.Model{Class: keyed}, row.OnePlace},
	{row.LostCommitsLeaveDoubt, row.Model{Class: once, LosesCommits: true}, row.OneRequest},
	{row.LostCommitsLeaveDoubt, row.Model{Class: keyed, LosesCommits: true}, row.FailedIsNot},
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
			explore.Breaks(t, model.Explored(), mutant.without.String(), mutant.breaks)
		})
	}
	if needed != row.AllGuards() {
		t.Errorf("no property needs %s", row.AllGuards()&^needed)
	}
}

// Where there are two guards, either of them is enough. The database keeps both.
func TestOneOfTwoGuardsIsEnough(t *testing.T) {
	t.Parallel()
	for _, model := range []row.Model{
		{Class: natural, Without: row.ClaimFences},
		{Class: natural, Without: row.AttemptEndsOnce},
		{Class: once, Batched: true, RepliesArrive: true, Without: row.LockBeforeRead},
		{Class: once, Batched: true, RepliesArrive: true, Without: row.AttemptEndsOnce},
	} {
		t.Run(model.Without.String()+" of "+string(model.Class), func(t *testing.T) {
			t.Parallel()
			explore.Holds(t, model.Explored())
		})
	}
}

// assertRefusesTheRest tries the actions for which the model has no step. It tries them once for all states that look
// the same in the tables.
func (i *intent) assertRefusesTheRest(s row.State) {
	i.T.Helper()
	shown := visibleOf(s)
	if i.tried[shown] {
		return
	}
	i.tried[shown] = true
	i.assertRefusesClaims(s)
	if s.Settled && s.Newest.Is() == dispatch.StatusCompleted {
		return // whether an operator may correct it depends on how it was completed
	}
	for plan, action := range map[row.Plan]operator.Action{
		row.Retry:             operator.Retry{},
		row.RetryMayDuplicate: operator.Retry{MayDuplicate: true},
		row.Cancel:            operator.Cancel{},
		row.ResolveCompleted:  operator.Resolve{As: dispatch.StatusCompleted},
		row.ResolveFailed:     operator.Resolve{As: dispatch.StatusFailed},
	} {
		i.assertJudges(action, i.model.Allows(&s, plan))
	}
}

// assertRefusesClaims tries to claim the row while it is not due, and for workers that were declared dead.
func (i *intent) assertRefusesClaims(s row.State) {
	i.T.Helper()
	for w, worker := range s.Workers {
		if s.IsDue() && !worker.DeclaredDead {
			continue
		}
		if held := i.claim(w, 1); len(held) != 0 {
			i.T.Errorf("worker %d claims it", w+1)
		}
	}
}

func (i *intent) assertJudges(action operator.Action, want bool) {
	i.T.Helper()
	if allowed, refused := i.Allows(i.configured(action), i.id); allowed != want {
		i.T.Errorf("%T %+v is allowed: %t, want %t; %s", action, action, allowed, want, refused)
	}
}
