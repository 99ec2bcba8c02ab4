package saga_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/model/explore"
	"github.com/agentoutbox/drainer/model/saga"
)

var (
	keyed        = saga.Model{Class: dispatch.KeyIdempotent}
	once         = saga.Model{Class: dispatch.NonIdempotent}
	asked        = saga.Model{Class: dispatch.NonIdempotent, Lookup: true}
	irreversible = saga.Model{Class: dispatch.NonIdempotent, Irreversible: true}
	unattended   = saga.Model{Class: dispatch.NonIdempotent, Unattended: true}
)

func TestNoOrderOfEventsBreaksAPromise(t *testing.T) {
	t.Parallel()
	for name, model := range map[string]saga.Model{
		"key_idempotent":                 keyed,
		"non_idempotent":                 once,
		"non_idempotent, with a lookup":  asked,
		"non_idempotent, not reversible": irreversible,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := explore.Holds(t, model.Explored())
			t.Logf("%s: %d states, %d steps", name, report.States, report.Steps)
		})
	}
}

// A database that lost commits brings back steps that were applied, and undone.
func TestLostCommitsBreakNoPromise(t *testing.T) {
	t.Parallel()
	for name, model := range map[string]saga.Model{
		// With an operator the first two have four million and one million states.
		"key_idempotent, unattended":                {Class: dispatch.KeyIdempotent, Unattended: true},
		"non_idempotent, with a lookup, unattended": {Class: dispatch.NonIdempotent, Lookup: true, Unattended: true},
		"non_idempotent":                            once,
		"non_idempotent, not reversible":            irreversible,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := explore.Holds(t, losing(model).Explored())
			t.Logf("%s: %d states, %d steps", name, report.States, report.Steps)
		})
	}
}

func losing(m saga.Model) saga.Model {
	m.LosesCommits = true
	return m
}

// Each mutant takes guards away and names the promise that this breaks.
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
	{saga.LateUndoIsTold, once, saga.DoubleTold},
	{saga.LateMarks, once, saga.NetZero},
	{saga.NewsDropAhead, once, saga.NetZero},
	{saga.ResolveWaits, once, saga.ResolvedRests},
	{saga.LostCommitsLeaveDoubt, losing(keyed), saga.NetZero},
	{saga.LostUndosLeaveDoubt, losing(once), saga.UndoneOnce},
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
			explore.Breaks(t, model.Explored(), mutant.without.String(), mutant.breaks)
		})
	}
	if needed != saga.AllGuards() {
		t.Errorf("no property needs %s", saga.AllGuards()&^needed)
	}
}

// Where there are two guards, either of them is enough.
func TestOneOfTwoGuardsIsEnough(t *testing.T) {
	t.Parallel()
	for _, guard := range []saga.Guards{saga.OnePass, saga.OneUndo, saga.UndoIsNoted, saga.NotesLater} {
		t.Run(guard.String(), func(t *testing.T) {
			t.Parallel()
			model := unattended
			model.Without = guard
			explore.Holds(t, model.Explored())
		})
	}
}

// assertRefusesTheRest tries the actions for which the model has no step.
func (r *run) assertRefusesTheRest(s saga.State) {
	r.T.Helper()
	can, attended := map[string]bool{}, r.model
	attended.Unattended = false
	for _, step := range attended.Explored().Steps(s) {
		can[said(step)] = true
	}
	for what, command := range map[string]func() error{
		"the operator retries the saga":  r.retry,
		"the operator resolves the saga": r.resolve,
	} {
		if !can[what] && command() == nil {
			r.T.Errorf("%s, although it cannot", what)
		}
	}
	if !can["the operator takes the run back"] && !can["the operator takes the cancelled run back"] && r.compensate() == nil {
		r.T.Error("the operator rolls the run back, although it was rolled back before")
	}
	if s.Saga == saga.Open {
		return
	}
	if r.cancel() == nil {
		r.T.Error("the operator cancels a run that is closed")
	}
	r.assertTakesNoStep()
	for _, step := range r.steps {
		if step.forward.id == 0 || step.agent != nil {
			continue
		}
		if allowed, _ := r.Allows(operator.Retry{MayDuplicate: true}, step.forward.id); allowed {
			r.T.Error("a step of a closed run can be retried")
		}
	}
}

func (r *run) assertTakesNoStep() {
	r.T.Helper()
	agent, err := r.DB.Begin(r.T.Context())
	if err != nil {
		r.T.Fatal(err)
	}
	defer agent.Rollback(context.WithoutCancel(r.T.Context()))
	_, err = r.enqueue(agent, "another")
	if refusal := new(pgconn.PgError); !errors.As(err, &refusal) || refusal.Code != "OB002" {
		r.T.Errorf("a closed run takes a further step: %v", err)
	}
}
