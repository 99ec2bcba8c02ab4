package operator_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
)

var actions = []operator.Action{
	operator.Retry{PolicyOf: configured(keyed)},
	operator.Retry{MayDuplicate: true},
	operator.Cancel{},
	operator.Resolve{As: dispatch.StatusCompleted},
	operator.Resolve{As: dispatch.StatusFailed},
}

// Operators do anything to everything while workers drain it. Whatever the
// order: every intent stays in one place, every change that an operator was
// told of is in the history once, and no attempt number is lost or doubled.
func TestOperatorsAndWorkersMayMeetInAnyOrder(t *testing.T) {
	t.Parallel()
	const intents, operators, workers, rounds = 60, 3, 3, 40
	o := newOutbox(t)
	ids := o.enqueue("run", intents)

	var changed atomic.Int64
	var changing, draining sync.WaitGroup
	done := make(chan struct{})
	for range workers {
		worker := o.join()
		draining.Go(func() { o.drainUntil(done, worker) })
	}
	for range operators {
		console := o.console()
		changing.Go(func() {
			for range rounds {
				verdicts, err := console.Change(t.Context(), actions[rand.IntN(len(actions))], onCall, ids)
				if err != nil {
					t.Error(err)
					return
				}
				changed.Add(accepted(verdicts))
				drainertest.AssertInvariant(t, o.db)
			}
		})
	}
	changing.Wait()
	close(done)
	draining.Wait()

	drainertest.AssertInvariant(t, o.db)
	if recorded := one[int64](o, `SELECT count(*) FROM outbox.attempt WHERE worker LIKE 'operator:%'`); recorded != changed.Load() {
		t.Errorf("%d changes are recorded, and operators were told of %d", recorded, changed.Load())
	}
	if changed.Load() < intents {
		t.Errorf("only %d changes were made; the test did not meet much", changed.Load())
	}
	if gaps := one[int](o, `SELECT count(*) FROM (SELECT FROM outbox.attempt GROUP BY intent_id HAVING count(*) <> max(attempt)) g`); gaps != 0 {
		t.Errorf("%d intents have gaps in their history", gaps)
	}
}

func accepted(verdicts []operator.Verdict) (accepted int64) {
	for _, verdict := range verdicts {
		if verdict.Refused == "" {
			accepted++
		}
	}
	return accepted
}

// drainUntil is a worker whose provider answers anything.
func (o *outbox) drainUntil(done <-chan struct{}, worker string) {
	outcomes := []dispatch.Outcome{dispatch.Completed, dispatch.Rejected, dispatch.Ambiguous, dispatch.Throttled, dispatch.Absent}
	policies := []dispatch.Policy{keyed, once, asked}
	for {
		reply, err := o.store.Turn(o.t.Context(), worker, drainer.Turn{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 7}}})
		if err != nil {
			o.t.Error(err)
			return
		}
		var settle drainer.Turn
		for _, row := range reply.Claimed[0].Rows {
			one := settling(policies[rand.IntN(len(policies))], outcomes[rand.IntN(len(outcomes))], row)
			settle.Settle, settle.Finish = append(settle.Settle, one.Settle...), one.Finish
		}
		settled, err := o.store.Turn(o.t.Context(), worker, settle)
		if err != nil || len(settled.Refused) > 0 {
			o.t.Errorf("a worker was refused %v (%v)", settled.Refused, err)
			return
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestOfTwoOperatorsOneWinsAndTheOtherIsTold(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	one, other := o.console(), o.console()
	for range 30 {
		ids := o.enqueue(time.Now().String(), 5)
		o.end(keyed, dispatch.Rejected)
		var first, second []operator.Verdict
		var group sync.WaitGroup
		group.Go(func() { first, _ = one.Change(t.Context(), operator.Retry{}, onCall, ids) })
		group.Go(func() {
			second, _ = other.Change(t.Context(), operator.Resolve{As: dispatch.StatusCompleted}, onCall, ids)
		})
		group.Wait()
		for i, id := range ids {
			if (first[i].Refused == "") == (second[i].Refused == "") {
				t.Fatalf("intent %d: %q and %q, want one to win", id, first[i].Refused, second[i].Refused)
			}
		}
		drainertest.AssertInvariant(t, o.db)
		o.exec(`DELETE FROM outbox.queue`)
		o.exec(`DELETE FROM outbox.attempt`)
		o.exec(`DELETE FROM outbox.intent`)
	}
}

// What was decided holds for the row as it stood, and for no later one.
func TestAnIntentThatMovedSinceTheDecisionIsLeftAlone(t *testing.T) {
	t.Parallel()
	claimed := func(o *outbox, _ int64) { o.claim() }
	tried := func(o *outbox, _ int64) { o.end(keyed, dispatch.Throttled) }
	doubted := func(o *outbox, _ int64) { o.end(keyed, dispatch.Ambiguous) }
	retried := func(o *outbox, intent int64) { o.mustChange(operator.Retry{MayDuplicate: true}, intent) }
	waits := func(*outbox, int64) {}
	fails := func(o *outbox, _ int64) { o.end(keyed, dispatch.Rejected) }
	isUnknown := func(o *outbox, _ int64) { o.end(once, dispatch.Ambiguous) }
	completed := operator.Resolve{As: dispatch.StatusCompleted}

	for name, test := range map[string]struct {
		before    func(*outbox, int64)
		action    operator.Action
		meanwhile func(*outbox, int64)
	}{
		"cancelled while a worker claims":        {waits, operator.Cancel{}, claimed},
		"cancelled while a worker tries":         {waits, operator.Cancel{}, tried},
		"resolved while a worker claims":         {doubted, completed, claimed},
		"resolved while a worker tries":          {doubted, completed, doubted},
		"retried while another operator retries": {fails, operator.Retry{}, retried},
		"resolved while another one retries":     {isUnknown, completed, retried},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			intent := o.enqueue("run", 1)[0]
			test.before(o, intent)
			var moved []string
			verdict := o.change(operator.Meanwhile{Action: test.action, Do: func() {
				test.meanwhile(o, intent)
				moved = o.history(intent)
			}}, intent)
			if after := o.history(intent); verdict.Refused == "" || !slices.Equal(after, moved) {
				t.Errorf("refused because %q; the history is %q, and was %q before", verdict.Refused, after, moved)
			}
		})
	}
}

// A claim that has not committed yet holds the row; it may yet be given back.
func TestAnOperatorDoesNotWaitForAClaim(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	tx := o.begin()
	if _, err := tx.Exec(t.Context(), `DELETE FROM outbox.queue WHERE intent_id = $1`, intent); err != nil {
		t.Fatal(err)
	}
	o.assertRefused(operator.Cancel{}, intent)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.mustChange(operator.Cancel{}, intent)
}

func TestAnOperatorThatWasWaitedForHasWon(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.end(keyed, dispatch.Rejected)
	tx := o.begin()
	if _, err := tx.Exec(t.Context(), `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
		VALUES ($1, 2, 'operator:second', 'resolved', 'completed')`, intent); err != nil {
		t.Fatal(err)
	}
	verdicts := make(chan []operator.Verdict, 1)
	console := o.console()
	go func() {
		late, err := console.Change(t.Context(), operator.Retry{}, onCall, []int64{intent})
		if err != nil {
			t.Error(err)
		}
		verdicts <- late
	}()
	o.awaitBlocked()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if late := <-verdicts; len(late) != 1 || late[0].Refused == "" {
		t.Errorf("the later one was told %+v", late)
	}
	o.assertStatus(intent, "completed")
	drainertest.AssertInvariant(t, o.db)
}

// An intent that is being forgotten has no history to add to.
func TestAnOperatorWhoMeetsAPruneFindsNoSuchIntent(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.end(keyed, dispatch.Rejected)
	o.exec(`UPDATE outbox.intent SET created_at = now() - interval '100 days'`)
	o.exec(`UPDATE outbox.attempt SET finished_at = now() - interval '100 days'`)
	tx := o.begin()
	if _, err := tx.Exec(t.Context(), `SELECT outbox.prune(0, 10, 7776000)`); err != nil {
		t.Fatal(err)
	}
	console := o.console()
	verdicts := make(chan []operator.Verdict, 1)
	go func() {
		late, err := console.Change(t.Context(), operator.Retry{}, onCall, []int64{intent})
		if err != nil {
			t.Error(err)
		}
		verdicts <- late
	}()
	o.awaitBlocked()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if late := <-verdicts; len(late) != 0 {
		t.Errorf("it was told %+v", late)
	}
	drainertest.AssertInvariant(t, o.db)
}

func (o *outbox) begin() pgx.Tx {
	o.t.Helper()
	tx, err := o.db.Begin(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

// awaitBlocked returns once another session waits for a lock.
func (o *outbox) awaitBlocked() {
	o.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !one[bool](o, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`) {
		if time.Now().After(deadline) {
			o.t.Fatal("nobody waits for the lock")
		}
	}
}
