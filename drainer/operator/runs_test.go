package operator_test

import (
	"errors"
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

// Each case leads the first of three steps to where the cancel finds it.
func TestACancelledRunStopsWhatWaitsAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lead  func(o *outbox)
		after string // what the first step is then
		want  operator.ClosedRun
	}{
		"nothing began": {func(*outbox) {}, "cancelled", operator.ClosedRun{Cancelled: 3}},
		"one completed": {func(o *outbox) { o.settle(keyed, dispatch.Completed, o.claimOne()) }, "completed", operator.ClosedRun{Cancelled: 2, Completed: 1}},
		"one waits after a refusal without effect": {func(o *outbox) { o.settle(keyed, dispatch.Throttled, o.claimOne()) }, "cancelled", operator.ClosedRun{Cancelled: 3}},
		"one is in progress":                       {func(o *outbox) { o.claimOne() }, "in_progress", operator.ClosedRun{Cancelled: 2, InProgress: 1}},
		"one may have been applied":                {func(o *outbox) { o.settle(keyed, dispatch.Ambiguous, o.claimOne()) }, "pending", operator.ClosedRun{Cancelled: 2, Unsettled: 1}},
		"one is to be looked up":                   {func(o *outbox) { o.settle(asked, dispatch.Ambiguous, o.claimOne()) }, "unknown", operator.ClosedRun{Cancelled: 2, Unsettled: 1}},
		"nobody knows of one":                      {func(o *outbox) { o.settle(once, dispatch.Ambiguous, o.claimOne()) }, "unknown", operator.ClosedRun{Cancelled: 2, Unsettled: 1}},
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
	reply, err := o.store.Turn(o.t.Context(), o.worker, drainer.Turn{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 1}}})
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
	if _, err := o.console().CancelRun(t.Context(), "typo", false, onCall); !errors.Is(err, operator.ErrNotFound) {
		t.Errorf("a run that is not there: %v", err)
	}
}

// A cancel is no failure: nothing goes back unless that is asked for, at once
// or later.
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

// Three workers claim a run's rows while it is cancelled. What is claimed to
// be sent was claimed by a statement that began before the cancel's commit.
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

// sendUntilDry is a worker that completes what it claims, and fails the test
// if it claims anything by a statement that began after the run was closed.
func (o *outbox) sendUntilDry(run, worker string, begin <-chan struct{}) (sent int) {
	<-begin
	for {
		closed := o.isClosed(run)
		reply, err := o.store.Turn(o.t.Context(), worker, drainer.Turn{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 5}}})
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
			if _, err := o.store.Turn(o.t.Context(), worker, settling(keyed, dispatch.Completed, rows...)); err != nil {
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
