package operator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
)

func (o *outbox) cancelRun(run string, compensate bool) operator.ClosedRun {
	o.t.Helper()
	closed, err := o.console().CancelRun(o.t.Context(), run, compensate, onCall)
	if err != nil {
		o.t.Fatal(err)
	}
	drainertest.AssertInvariant(o.t, o.db)
	return closed
}

// Each case moves the first of three steps to the status in which the cancel finds it.
func TestACancelledRunStopsWhatWaitsAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lead  func(o *outbox)
		after string // the first step's status after the cancel
		want  operator.ClosedRun
	}{
		"nothing began": {func(*outbox) {}, "cancelled", operator.ClosedRun{Cancelled: 3}},
		"one completed": {func(o *outbox) { o.settle(keyed, dispatch.Completed, o.claimOne()) }, "completed", operator.ClosedRun{Cancelled: 2, Completed: 1}},
		"one waits after a refusal without effect": {func(o *outbox) { o.settle(keyed, dispatch.Throttled, o.claimOne()) }, "cancelled", operator.ClosedRun{Cancelled: 3}},
		"one is in progress":                       {func(o *outbox) { o.claimOne() }, "in_progress", operator.ClosedRun{Cancelled: 2, InProgress: 1}},
		"one may have been applied":                {func(o *outbox) { o.settle(keyed, dispatch.Ambiguous, o.claimOne()) }, "pending", operator.ClosedRun{Cancelled: 2, Unsettled: 1}},
		"one is to be looked up":                   {func(o *outbox) { o.settle(asked, dispatch.Ambiguous, o.claimOne()) }, "unknown", operator.ClosedRun{Cancelled: 2, Unsettled: 1}},
		"one is of unknown outcome":                {func(o *outbox) { o.settle(once, dispatch.Ambiguous, o.claimOne()) }, "unknown", operator.ClosedRun{Cancelled: 2, Unsettled: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			steps := o.enqueue("astray", 3)
			o.exec(`UPDATE outbox.queue SET next_attempt_at = next_attempt_at - interval '1 hour' WHERE intent_id = $1`, steps[0])
			bystander := o.enqueue("other", 1)[0]
			o.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour' WHERE intent_id = $1`, bystander)
			test.lead(o)
			test.want.AgentRunID, test.want.State = "astray", "cancelled"
			if closed := o.cancelRun("astray", false); closed != test.want {
				t.Errorf("got %+v, want %+v", closed, test.want)
			}
			o.assertStatus(steps[0], test.after)
			o.assertStatus(bystander, "pending")
			if rows := o.claim(); len(rows) > 0 && !rows[0].Closed && !rows[0].Lookup {
				t.Errorf("a step of a cancelled run was claimed to be sent")
			}
			drainertest.AssertInvariant(t, o.db)
		})
	}
}

func (o *outbox) claimOne() *drainer.Row {
	o.t.Helper()
	reply, err := o.store.Commit(o.t.Context(), o.worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 1}}})
	if err != nil || len(reply.Claimed[0].Rows) != 1 {
		o.t.Fatalf("claimed %+v, %v; want one row", reply, err)
	}
	return reply.Claimed[0].Rows[0]
}

func TestACancelledRunTakesNoFurtherStepAndSaysWhoStoppedIt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	steps := o.enqueue("astray", 1)
	o.cancelRun("astray", false)
	_, err := o.db.Exec(t.Context(), `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('astray', 'late', 'sim/act', 's', '{}')`)
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "OB002" {
		t.Errorf("another step: %v, want OB002", err)
	}
	if history := o.history(steps[0]); len(history) != 1 || history[0] != "1 operator:on-call cancelled cancelled" {
		t.Errorf("the history says %q", history)
	}
	if kept := one[string](o, `SELECT action || ' ' || agent_run_id || ' ' || operator || ': ' || reason FROM outbox.operation`); kept != "cancel_run astray operator:on-call: because" {
		t.Errorf("kept is %q", kept)
	}
	var again *operator.SagaError
	if _, err := o.console().CancelRun(t.Context(), "astray", false, onCall); !errors.As(err, &again) || again.State != "cancelled" {
		t.Errorf("cancelled again: %v", err)
	}
	if _, err := o.console().CancelRun(t.Context(), "typo", false, onCall); !errors.Is(err, operator.ErrNoRun) {
		t.Errorf("a run that is not there: %v", err)
	}
}

// A cancel is no failure. A run is rolled back only if an operator asks for that, at once or later.
func TestACancelledRunGoesBackOnlyIfAsked(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("now", 2)
	o.enqueue("later", 2)
	if closed := o.cancelRun("now", true); closed.State != "begun" || closed.Cancelled != 2 {
		t.Errorf("got %+v, want a saga begun and both steps stopped", closed)
	}
	if closed := o.cancelRun("later", false); closed.State != "cancelled" {
		t.Errorf("got %+v, want it cancelled", closed)
	}
	if closed := o.cancelRun("later", true); closed.State != "begun" {
		t.Errorf("got %+v, want a saga begun", closed)
	}
}

// Three workers claim a run's rows while it is cancelled. A row can only be claimed for a send by a statement that began
// before the cancel's commit.
func TestWorkersAndACancelMayMeetAtAnyMoment(t *testing.T) {
	t.Parallel()
	const rounds, workers, steps = 15, 3, 120
	o := newOutbox(t)
	met := 0
	for round := range rounds {
		run := string(rune('a' + round))
		o.enqueue(run, steps)
		var claiming sync.WaitGroup
		begin := make(chan struct{})
		sent := make([]int, workers)
		for i := range workers {
			worker := o.join()
			claiming.Go(func() { sent[i] = o.sendUntilDry(run, worker, begin) })
		}
		console := o.console()
		close(begin)
		if _, err := console.CancelRun(t.Context(), run, false, onCall); err != nil {
			t.Fatal(err)
		}
		claiming.Wait()
		drainertest.AssertInvariant(t, o.db)
		total := sent[0] + sent[1] + sent[2]
		completed := one[int](o, `SELECT count(*) FROM outbox.status WHERE agent_run_id = $1 AND status = 'completed'`, run)
		stopped := one[int](o, `SELECT count(*) FROM outbox.status WHERE agent_run_id = $1 AND status = 'cancelled'`, run)
		if completed != total || completed+stopped != steps {
			t.Errorf("%d of %d steps were sent, %d are completed and %d cancelled", total, steps, completed, stopped)
		}
		if completed > 0 && stopped > 0 {
			met++
		}
	}
	if met == 0 {
		t.Error("the cancel never came in between, so nothing was shown")
	}
}

// sendUntilDry claims rows and completes them. It fails the test if it claims a row by a statement that began after the
// run was closed.
func (o *outbox) sendUntilDry(run, worker string, begin <-chan struct{}) (sent int) {
	<-begin
	for {
		closed := o.isClosed(run)
		reply, err := o.store.Commit(o.t.Context(), worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 5}}})
		if err != nil {
			o.t.Error(err)
			return sent
		}
		rows := reply.Claimed[0].Rows
		switch {
		case closed && len(rows) > 0:
			o.t.Errorf("%d rows were claimed after the run was closed", len(rows))
		case closed:
			return sent
		case len(rows) > 0:
			if _, err := o.store.Commit(o.t.Context(), worker, settling(keyed, dispatch.Completed, rows...)); err != nil {
				o.t.Error(err)
				return sent
			}
			sent += len(rows)
		}
	}
}

func (o *outbox) isClosed(run string) (closed bool) {
	if err := o.db.QueryRow(o.t.Context(), `SELECT EXISTS (SELECT FROM outbox.saga WHERE agent_run_id = $1)`, run).Scan(&closed); err != nil {
		o.t.Error(err)
		return true
	}
	return closed
}

// failedSaga makes a run of two steps whose saga failed, because the undo of its first step ended with that status.
func failedSaga(o *outbox, undoStatus string) (steps []int64, undo int64) {
	steps = o.enqueue("doomed", 2)
	o.exec(`DELETE FROM outbox.queue`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status)
		SELECT id, 1, gen_random_uuid()::text, now(), 'completed', 'completed' FROM outbox.intent`)
	o.exec(`INSERT INTO outbox.saga (agent_run_id, cause, state, ended_at) VALUES ('doomed', $1, 'compensation_failed', now())`, steps[1])
	undo = one[int64](o, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, compensates, tenant)
		SELECT 'doomed', 'compensate:' || id, 'sim/undo', 'scope', '{}', id, tenant FROM outbox.intent WHERE id = $1 RETURNING id`, steps[0])
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
		if err := o.console().RetrySaga(t.Context(), "doomed", nil, false, signed); err != nil {
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

// A step that was undone by hand is never undone by drainer, not in a later epoch either.
func TestAStepThatWasUndoneByHandIsNotUndoneAgain(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	steps, undo := failedSaga(o, "failed")
	if err := o.console().RetrySaga(t.Context(), "doomed", steps[:1], false, signed); err != nil {
		t.Fatal(err)
	}
	o.assertStatus(steps[0], "compensated")
	if history := o.history(steps[0]); !slices.Contains(history, "3 operator:on-call undone_by_hand compensated") {
		t.Errorf("%q does not show who undid it", history)
	}
	o.exec(`UPDATE outbox.saga SET state = 'compensation_failed'`)
	if err := o.console().RetrySaga(t.Context(), "doomed", nil, false, signed); err != nil {
		t.Fatal(err)
	}
	o.assertStatus(undo, "failed")
}

func TestOnlyAStepThatCouldNotBeUndoneIsCalledUndone(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	steps, undo := failedSaga(o, "failed")
	for _, other := range []int64{steps[1], undo, o.enqueue("other", 1)[0], 4711} {
		err := o.console().RetrySaga(t.Context(), "doomed", []int64{steps[0], other}, false, signed)
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
	if err := o.console().RetrySaga(t.Context(), "doomed", nil, false, signed); err != nil {
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
		return c.RetrySaga(ctx, run, nil, false, by)
	}
	cancel := func(c *operator.Console, ctx context.Context, run string, by operator.Signature) error {
		_, err := c.CancelRun(ctx, run, false, by)
		return err
	}
	for _, test := range []struct {
		state string // of the saga; empty for none
		act   act
		does  operator.RunAction
		ok    bool
	}{
		{"", (*operator.Console).Compensate, operator.RollBackRun, true},
		{"cancelled", (*operator.Console).Compensate, operator.RollBackRun, true},
		{"begun", (*operator.Console).Compensate, operator.RollBackRun, false},
		{"compensated", (*operator.Console).Compensate, operator.RollBackRun, false},
		{"", cancel, operator.CloseRun, true},
		{"cancelled", cancel, operator.CloseRun, false},
		{"begun", cancel, operator.CloseRun, false},
		{"", retry, operator.GoOnWithSaga, false},
		{"begun", retry, operator.GoOnWithSaga, false},
		{"compensated", retry, operator.GoOnWithSaga, false},
		{"compensation_failed", retry, operator.GoOnWithSaga, true},
		{"", (*operator.Console).ResolveSaga, operator.EndSaga, false},
		{"begun", (*operator.Console).ResolveSaga, operator.EndSaga, true},
		{"compensation_failed", (*operator.Console).ResolveSaga, operator.EndSaga, true},
		{"compensated", (*operator.Console).ResolveSaga, operator.EndSaga, false},
		{"resolved", (*operator.Console).ResolveSaga, operator.EndSaga, false},
	} {
		o := newOutbox(t)
		o.enqueue("run", 1)
		if test.state != "" {
			o.exec(`INSERT INTO outbox.saga (agent_run_id, state) VALUES ('run', $1)`, test.state)
		}
		would, err := o.console().PreviewRun(t.Context(), test.does, "run")
		if err != nil {
			t.Fatal(err)
		}
		err = test.act(o.console(), t.Context(), "run", signed)
		var refused *operator.SagaError
		if test.ok != (err == nil) || (err != nil && !errors.As(err, &refused) && !errors.Is(err, operator.ErrNoSaga)) {
			t.Errorf("in state %q: %v, want it to work: %v", test.state, err, test.ok)
		}
		if err == nil && would.Refused != "" || err != nil && would.Refused != err.Error() {
			t.Errorf("in state %q the preview says %q, and then comes: %v", test.state, would.Refused, err)
		}
	}
}

func TestARunThatIsNotThereIsSaidToBe(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	if err := o.console().Compensate(t.Context(), "typo", signed); !errors.Is(err, operator.ErrNoRun) {
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
	sagas, err := o.console().Sagas(t.Context(), operator.SagaFilter{State: "compensation_failed", Limit: 10})
	if err != nil || len(sagas) != 1 {
		t.Errorf("listed %+v, %v", sagas, err)
	}
}

func TestAResolvedSagaSendsNoUndoThatWaits(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	_, undo := failedSaga(o, "failed")
	if err := o.console().RetrySaga(t.Context(), "doomed", nil, false, signed); err != nil {
		t.Fatal(err)
	}
	// preview returns the status that the undo would get, or why the saga would not end.
	preview := func() string {
		would, err := o.console().PreviewRun(t.Context(), operator.EndSaga, "doomed")
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range would.Steps {
			if step.IntentID == undo && step.IsUndo {
				return step.After
			}
		}
		return would.Refused
	}
	o.exec(`UPDATE outbox.queue SET maybe_applied = true`)
	var refused *operator.SagaError
	if err := o.console().ResolveSaga(t.Context(), "doomed", signed); !errors.As(err, &refused) || preview() != err.Error() {
		t.Errorf("%v, want a refusal while the undo may have been applied, and the same before it: %s", err, preview())
	}
	o.exec(`UPDATE outbox.queue SET maybe_applied = false`)
	o.exec(`UPDATE outbox.history SET doubted_before = era + 1`)
	if err := o.console().ResolveSaga(t.Context(), "doomed", signed); !errors.As(err, &refused) || preview() != err.Error() {
		t.Errorf("%v, want a refusal while the undo may have been applied by an attempt that is lost, and the same before it: %s", err, preview())
	}
	o.exec(`UPDATE outbox.history SET doubted_before = 0`)
	if would := preview(); would != "cancelled" {
		t.Errorf("the undo that waits would be %q", would)
	}
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
	if err := o.console().RetrySaga(t.Context(), "doomed", nil, false, signed); err != nil {
		t.Fatal(err)
	}
	o.exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$`)
	o.exec(`CREATE TRIGGER slow AFTER INSERT ON outbox.claim FOR EACH ROW EXECUTE FUNCTION slow()`)
	gate := drainertest.Begin(t, o.db)
	drainertest.Exec(t, gate, `SELECT pg_advisory_xact_lock(7)`)
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

// A worker has written that an undo had an effect, and is about to lock the saga. An operator writes to both, too.
func TestASagaIsChangedWhileLateEvidenceOfAnUndoIsWritten(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	steps, undo := failedSaga(o, "failed")
	if err := o.console().RetrySaga(t.Context(), "doomed", nil, false, signed); err != nil {
		t.Fatal(err)
	}
	rows := o.claim()
	o.exec(`DELETE FROM outbox.claim`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status)
		SELECT id, (SELECT max(attempt) + 1 FROM outbox.attempt WHERE intent_id = id), 'saga', now(), 'rejected',
			CASE WHEN compensates IS NULL THEN 'compensation_failed' ELSE 'failed' END
		FROM outbox.intent WHERE id = ANY ($1)`, []int64{steps[0], undo})
	o.exec(`UPDATE outbox.saga SET state = 'compensation_failed'`)
	o.exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$`)
	o.exec(`CREATE TRIGGER slow AFTER INSERT ON outbox.attempt FOR EACH ROW WHEN (NEW.error = 'late') EXECUTE FUNCTION slow()`)
	gate := drainertest.Begin(t, o.db)
	drainertest.Exec(t, gate, `SELECT pg_advisory_xact_lock(7)`)
	recorded, retried := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := o.store.Commit(context.Background(), o.worker, settling(once, dispatch.Completed, rows...))
		recorded <- err
	}()
	o.awaitWaiters(1)
	console := o.console()
	go func() { retried <- console.RetrySaga(context.Background(), "doomed", nil, false, signed) }()
	o.awaitWaiters(2)
	if err := gate.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if late, retry := <-recorded, <-retried; late != nil || retry != nil {
		t.Errorf("the evidence is recorded with %v, and the saga retried with %v; want both done", late, retry)
	}
	o.assertStatus(undo, "completed")
	o.assertStatus(steps[0], "completed")
}

// awaitWaiters returns once that many sessions of this database wait for a lock.
func (o *outbox) awaitWaiters(want int) {
	o.t.Helper()
	drainertest.Eventually(o.t, fmt.Sprintf("%d sessions wait", want), func() bool {
		return one[int](o, `SELECT count(DISTINCT pid)::int FROM pg_locks WHERE NOT granted
			AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`) >= want
	})
}

// A provider saved its refusal of an undo with the key. An undo that may have been applied keeps its key, because with
// another key it could be applied twice.
func TestARetriedSagaGivesNewKeysToUndosThatFailedAlone(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status       string
		lost, renews bool
	}{{"failed", false, true}, {"unknown", false, false}, {"failed", true, false}} {
		o := newOutbox(t)
		_, undo := failedSaga(o, test.status)
		if test.lost {
			o.exec(`UPDATE outbox.history SET era = era + 1, doubted_before = era + 1, began_at = clock_timestamp()`)
		}
		before := o.key(undo)
		if err := o.console().RetrySaga(t.Context(), "doomed", nil, true, signed); err != nil {
			t.Fatal(err)
		}
		if changed := o.key(undo) != before; changed != test.renews {
			t.Errorf("%+v: the key changed %v", test, changed)
		}
		if doubts := one[bool](o, `SELECT maybe_applied AND lookup FROM outbox.queue WHERE intent_id = $1`, undo); doubts == test.renews {
			t.Errorf("%+v: the undo is in doubt, and is asked for first: %v", test, doubts)
		}
	}
}
