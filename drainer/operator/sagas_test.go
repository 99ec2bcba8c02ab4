package operator_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
)

// failedSaga is a run whose first of two steps could not be undone: its undo
// ended with that status.
func failedSaga(o *outbox, undoStatus string) (steps []int64, undo int64) {
	steps = o.enqueue("doomed", 2)
	o.exec(`DELETE FROM outbox.queue`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status)
		SELECT id, 1, gen_random_uuid()::text, now(), 'completed', 'completed' FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.saga (agent_run_id, cause, state, ended_at) VALUES ('doomed', $1, 'compensation_failed', now())`, steps[1])
	undo = one[int64](o, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates)
		VALUES ('doomed', 'compensate:' || $1::bigint, 'sim/undo', 'scope', '{}', $1) RETURNING id`, steps[0])
	o.exec(`DELETE FROM outbox.queue`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status)
		VALUES ($1, 1, gen_random_uuid()::text, now(), 'ambiguous', $2)`, undo, undoStatus)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
		VALUES ($1, 2, 'saga', 'not_undone', 'compensation_failed')`, steps[0])
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('compensation_failed', $1, 'doomed')`, steps[0])
	return steps, undo
}

var signed = operator.Signature{Operator: "on-call", Reason: "tool mended"}

func TestARetriedSagaSendsTheUndoAgainInANewEpoch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status  string
		inDoubt bool
	}{{"failed", false}, {"unknown", true}} {
		o := newOutbox(t)
		steps, undo := failedSaga(o, test.status)
		if err := o.console().RetrySaga(t.Context(), "doomed", nil, signed); err != nil {
			t.Fatal(err)
		}
		story, err := o.console().SagaOf(t.Context(), "doomed")
		if err != nil {
			t.Fatal(err)
		}
		if story.State != "begun" || story.Epoch != 2 || story.EndedAt != nil {
			t.Errorf("%+v, want it under way in its second epoch", story.Saga)
		}
		if first := story.Steps[0]; first.IntentID != steps[0] || first.Status != "completed" || first.Undo == nil || first.Undo.Status != "pending" {
			t.Errorf("%+v, want the step completed and its undo on its way", first)
		}
		if doubt := one[bool](o, `SELECT maybe_applied AND lookup AND first_attempt_at IS NOT NULL FROM outbox.queue WHERE intent_id = $1`, undo); doubt != test.inDoubt {
			t.Errorf("%s: the doubt is %v", test.status, doubt)
		}
		if open := one[int](o, `SELECT count(*)::int FROM outbox.incident WHERE resolved_at IS NULL`); open != 0 {
			t.Errorf("%d incidents still page", open)
		}
	}
}

// A step that people undid is never undone by drainer as well, in no later epoch either.
func TestAStepThatWasUndoneByHandIsNotUndoneAgain(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	steps, undo := failedSaga(o, "failed")
	if err := o.console().RetrySaga(t.Context(), "doomed", steps[:1], signed); err != nil {
		t.Fatal(err)
	}
	o.assertStatus(steps[0], "compensated")
	if history := o.history(steps[0]); !slices.Contains(history, "3 operator:on-call undone_by_hand compensated") {
		t.Errorf("%q does not tell who undid it", history)
	}
	o.exec(`UPDATE outbox.saga SET state = 'compensation_failed'`)
	if err := o.console().RetrySaga(t.Context(), "doomed", nil, signed); err != nil {
		t.Fatal(err)
	}
	o.assertStatus(undo, "failed")
}

func TestOnlyAStepThatCouldNotBeUndoneIsCalledUndone(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	steps, undo := failedSaga(o, "failed")
	for _, other := range []int64{steps[1], undo, o.enqueue("other", 1)[0], 4711} {
		err := o.console().RetrySaga(t.Context(), "doomed", []int64{steps[0], other}, signed)
		if !errors.Is(err, operator.ErrNotStuck) {
			t.Errorf("intent %d: %v, want it refused", other, err)
		}
	}
	o.assertStatus(steps[0], "compensation_failed")
	if state := one[string](o, `SELECT state FROM outbox.saga`); state != "compensation_failed" {
		t.Errorf("the saga is %s", state)
	}
}

func TestASagaSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	steps, undo := failedSaga(o, "failed")
	assertWaits := func(want ...operator.Wait) {
		t.Helper()
		story, err := o.console().SagaOf(t.Context(), "doomed")
		if err != nil || !slices.Equal(story.WaitsFor, want) {
			t.Errorf("it waits for %+v, %v; want %+v", story.WaitsFor, err, want)
		}
	}
	assertWaits()
	if err := o.console().RetrySaga(t.Context(), "doomed", nil, signed); err != nil {
		t.Fatal(err)
	}
	assertWaits(operator.Wait{IntentID: undo, Status: "pending"})
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, 9, 'w', 'ambiguous', 'unknown')`, steps[1])
	assertWaits(operator.Wait{IntentID: steps[1], Status: "unknown", Human: true})
}

func TestASagaTellsWhichStepsStand(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	steps, _ := failedSaga(o, "failed")
	story, err := o.console().SagaOf(t.Context(), "doomed")
	if err != nil || !slices.Equal(story.Standing(), steps[1:]) {
		t.Errorf("%v stand, %v; want %v", story.Standing(), err, steps[1:])
	}
}

func TestAnIntentAndItsUndoNameTheirRun(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	steps, undo := failedSaga(o, "failed")
	for _, intent := range []int64{steps[0], undo} {
		if run, err := o.console().RunOf(t.Context(), intent); err != nil || run != "doomed" {
			t.Errorf("intent %d is of the run %q, %v", intent, run, err)
		}
	}
	if _, err := o.console().RunOf(t.Context(), 4711); !errors.Is(err, operator.ErrNotFound) {
		t.Errorf("%v, want that there is no such intent", err)
	}
}

func TestAResolvedSagaIsOverAndItsRunStaysClosed(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	failedSaga(o, "failed")
	if err := o.console().ResolveSaga(t.Context(), "doomed", signed); err != nil {
		t.Fatal(err)
	}
	saga, err := o.console().SagaOf(t.Context(), "doomed")
	if err != nil || saga.State != "resolved" || *saga.ChangedBy != "operator:on-call" || *saga.Reason != "tool mended" {
		t.Errorf("%+v, %v", saga, err)
	}
	_, err = o.db.Exec(t.Context(), `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('doomed', 'late', 'sim/act', 's', '{}')`)
	if err == nil {
		t.Error("the run took another step")
	}
}

func TestARunIsTakenBackByHand(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("astray", 1)
	if err := o.console().Compensate(t.Context(), "astray", signed); err != nil {
		t.Fatal(err)
	}
	if saga, err := o.console().SagaOf(t.Context(), "astray"); err != nil || saga.State != "begun" || saga.Cause != nil {
		t.Errorf("%+v, %v", saga, err)
	}
}

func TestASagaIsChangedOnlyWhereThatMakesSense(t *testing.T) {
	t.Parallel()
	type act = func(*operator.Console, context.Context, string, operator.Signature) error
	retry := func(c *operator.Console, ctx context.Context, run string, by operator.Signature) error {
		return c.RetrySaga(ctx, run, nil, by)
	}
	for _, test := range []struct {
		state string // of the saga; empty for none
		act   act
		ok    bool
	}{
		{"", (*operator.Console).Compensate, true},
		{"cancelled", (*operator.Console).Compensate, true},
		{"begun", (*operator.Console).Compensate, false},
		{"compensated", (*operator.Console).Compensate, false},
		{"", retry, false},
		{"begun", retry, false},
		{"compensated", retry, false},
		{"compensation_failed", retry, true},
		{"begun", (*operator.Console).ResolveSaga, true},
		{"compensation_failed", (*operator.Console).ResolveSaga, true},
		{"compensated", (*operator.Console).ResolveSaga, false},
		{"resolved", (*operator.Console).ResolveSaga, false},
	} {
		o := newOutbox(t)
		o.enqueue("run", 1)
		if test.state != "" {
			o.exec(`INSERT INTO outbox.saga (agent_run_id, state) VALUES ('run', $1)`, test.state)
		}
		err := test.act(o.console(), t.Context(), "run", signed)
		var refused *operator.SagaError
		if test.ok != (err == nil) || (err != nil && !errors.As(err, &refused) && !errors.Is(err, operator.ErrNoSaga)) {
			t.Errorf("in state %q: %v, want it to work: %v", test.state, err, test.ok)
		}
	}
}

func TestARunThatIsNotThereIsSaidToBe(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	if err := o.console().Compensate(t.Context(), "typo", signed); !errors.Is(err, operator.ErrNotFound) {
		t.Errorf("%v, want that there is no such run", err)
	}
	if _, err := o.console().SagaOf(t.Context(), "typo"); !errors.Is(err, operator.ErrNoSaga) {
		t.Errorf("%v, want that there is no saga", err)
	}
}

func TestTheStoryOfASagaIsToldInOrder(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	failedSaga(o, "failed")
	story, err := o.console().SagaOf(t.Context(), "doomed")
	if err != nil {
		t.Fatal(err)
	}
	if len(story.Steps) != 2 || len(story.Timeline) != 4 {
		t.Errorf("%d steps and %d events, want 2 and 4", len(story.Steps), len(story.Timeline))
	}
	if !slices.IsSortedFunc(story.Timeline, func(a, b operator.Event) int { return a.FinishedAt.Compare(b.FinishedAt) }) {
		t.Error("the timeline is not in order")
	}
	sagas, err := o.console().Sagas(t.Context(), "compensation_failed", 10)
	if err != nil || len(sagas) != 1 {
		t.Errorf("listed %+v, %v", sagas, err)
	}
}

func TestAResolvedSagaSendsNoUndoThatWaits(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	_, undo := failedSaga(o, "failed")
	if err := o.console().RetrySaga(t.Context(), "doomed", nil, signed); err != nil {
		t.Fatal(err)
	}
	o.exec(`UPDATE outbox.queue SET maybe_applied = true`)
	var refused *operator.SagaError
	if err := o.console().ResolveSaga(t.Context(), "doomed", signed); !errors.As(err, &refused) {
		t.Errorf("%v, want a refusal while the undo may have been applied", err)
	}
	o.exec(`UPDATE outbox.queue SET maybe_applied = false`)
	if err := o.console().ResolveSaga(t.Context(), "doomed", signed); err != nil {
		t.Fatal(err)
	}
	if status := one[string](o, `SELECT status FROM outbox.status WHERE intent_id = $1`, undo); status != "cancelled" {
		t.Errorf("the undo is %s, want it not to be sent any more", status)
	}
	if queued := one[int](o, `SELECT count(*)::int FROM outbox.queue WHERE intent_id = $1`, undo); queued != 0 {
		t.Error("the undo still waits")
	}
	drainertest.AssertInvariant(t, o.db)
}

func TestASagaIsNotResolvedWhileAWorkerTakesItsUndo(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	failedSaga(o, "failed")
	if err := o.console().RetrySaga(t.Context(), "doomed", nil, signed); err != nil {
		t.Fatal(err)
	}
	o.exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$`)
	o.exec(`CREATE TRIGGER slow AFTER INSERT ON outbox.claim FOR EACH ROW EXECUTE FUNCTION slow()`)
	gate, err := o.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gate.Rollback(context.Background()) }()
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_xact_lock(7)`); err != nil {
		t.Fatal(err)
	}
	claimed, resolved := make(chan int, 1), make(chan error, 1)
	go func() { claimed <- len(o.claim()) }()
	o.awaitWaiters(1)
	console := o.console()
	go func() { resolved <- console.ResolveSaga(context.Background(), "doomed", signed) }()
	o.awaitWaiters(2)
	if err := gate.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	var refused *operator.SagaError
	if rows, err := <-claimed, <-resolved; rows != 1 || !errors.As(err, &refused) {
		t.Errorf("%d rows were claimed and the saga was resolved with %v; want the undo claimed and the resolution refused", rows, err)
	}
}

// awaitWaiters returns once that many sessions of this database wait for a lock.
func (o *outbox) awaitWaiters(want int) {
	o.t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(30 * time.Second); ; {
		if one[int](o, `SELECT count(DISTINCT pid)::int FROM pg_locks WHERE NOT granted
			AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`) >= want {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			o.t.Fatalf("there were never %d sessions that wait", want)
		}
	}
}
