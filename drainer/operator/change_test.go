package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
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

func TestACancelledIntentIsNeverSentAndSaysWhoAndWhy(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]

	o.mustChange(operator.Cancel{}, intent)
	o.assertStatus(intent, "cancelled")
	if rows := o.claim(); len(rows) != 0 {
		t.Errorf("a worker claimed %d rows of it", len(rows))
	}
	if got := o.history(intent); !slices.Equal(got, []string{"1 operator:on-call cancelled cancelled"}) {
		t.Errorf("the history is %q", got)
	}
	if reason := one[string](o, `SELECT reason FROM outbox.attempt WHERE intent_id = $1`, intent); reason != "because" {
		t.Errorf("the reason is %q", reason)
	}
	o.assertRefused(operator.Cancel{}, intent)
}

// A row that was due when the database lost commits may have been sent by an attempt that is lost.
func TestARowThatWasDueWhenCommitsWereLostIsResolvedAndNotCancelled(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.claim() // its worker began the history when it joined
	doubted := o.enqueue("before", 1)[0]
	o.exec(`UPDATE outbox.history SET era = era + 1, doubted_before = era + 1`)
	later := o.enqueue("after", 1)[0]

	o.assertRefused(operator.Cancel{}, doubted)
	o.mustChange(operator.Resolve{As: dispatch.StatusCompleted}, doubted)
	o.assertStatus(doubted, "completed")
	o.assertRefused(operator.Resolve{As: dispatch.StatusCompleted}, later)
	o.mustChange(operator.Cancel{}, later)
	o.assertStatus(later, "cancelled")
}

// The attempts that sent an intent may be lost, so the life of its key counts from its enqueue.
func TestAKeyIsAsOldAsItsIntentWhereCommitsWereLost(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		doubted string
		refused bool
	}{"commits were lost": {"era", true}, "none were": {"0", false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			o.claim() // its worker began the history when it joined
			intent := o.enqueue("run", 1)[0]
			o.end(keyed, dispatch.Ambiguous)
			o.exec(`DELETE FROM outbox.queue`)
			o.exec(`UPDATE outbox.attempt SET status = 'unknown', next_attempt_at = NULL`)
			o.exec(`UPDATE outbox.intent SET created_at = now() - interval '13 hours'`) // half of the key's life is over
			o.exec(`UPDATE outbox.history SET doubted_before = ` + test.doubted)
			retry := operator.Retry{PolicyOf: func(string, string) (dispatch.Policy, bool) { return keyed, true }}
			if test.refused {
				o.assertRefused(retry, intent)
			} else {
				o.mustChange(retry, intent)
			}
		})
	}
}

func TestWhatIsInProgressIsLeftToItsWorker(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	rows := o.claim()
	for _, action := range []operator.Action{operator.Cancel{}, operator.Retry{MayDuplicate: true}, operator.Resolve{As: dispatch.StatusFailed}} {
		o.assertRefused(action, intent)
	}
	o.settle(keyed, dispatch.Completed, rows...)
	o.assertStatus(intent, "completed")
}

func TestARetriedIntentStartsOverUnderHigherNumbers(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.end(keyed, dispatch.Throttled)
	o.end(keyed, dispatch.Rejected)
	o.assertStatus(intent, "failed")

	o.mustChange(operator.Retry{}, intent)
	o.assertRefused(operator.Retry{}, intent)
	rows := o.claim()
	if len(rows) != 1 || rows[0].Attempt != 4 || rows[0].Tries != 1 || rows[0].MaybeApplied || rows[0].Lookup {
		t.Fatalf("claimed %+v, want attempt 4 as try 1, without a doubt", rows)
	}
	o.settle(keyed, dispatch.Completed, rows...)
	want := []string{"1 worker throttled pending", "2 worker rejected failed", "3 operator:on-call retried pending", "4 worker completed completed"}
	if got := o.history(intent); !slices.Equal(got, want) {
		t.Errorf("the history is %q, want %q", got, want)
	}
}

func TestACancelledIntentCanBeRetried(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.mustChange(operator.Cancel{}, intent)
	o.mustChange(operator.Retry{}, intent)
	if rows := o.claim(); len(rows) != 1 || rows[0].Attempt != 3 || rows[0].FirstAttemptAt != nil {
		t.Errorf("claimed %+v, want the third number and nothing sent yet", rows)
	}
}

// The operator's retry must find the same past that the engine kept in the row.
func TestARetryCarriesTheDoubtAndItsAgeAlong(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.end(keyed, dispatch.NotSent)
	o.end(keyed, dispatch.Ambiguous)
	sent := one[time.Time](o, `SELECT first_attempt_at FROM outbox.queue WHERE intent_id = $1`, intent)
	o.end(keyed, dispatch.Rejected)
	o.assertStatus(intent, "unknown")

	o.mustChange(operator.Retry{PolicyOf: configured(keyed)}, intent)
	rows := o.claim()
	if len(rows) != 1 || !rows[0].MaybeApplied || rows[0].FirstAttemptAt == nil || !rows[0].FirstAttemptAt.Equal(sent) {
		t.Fatalf("claimed %+v, want it in doubt since %v", rows[0], sent)
	}
	o.settle(keyed, dispatch.Rejected, rows...)
	o.assertStatus(intent, "unknown") // a refusal proves nothing about the first request
}

func TestADoubtfulEffectStaysWithTheFallbackThatMayHaveHadIt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	rows := o.claim()
	rows[0].Via = "spare"
	o.settle(once, dispatch.Ambiguous, rows...)
	o.assertStatus(intent, "unknown")

	o.mustChange(operator.Retry{MayDuplicate: true}, intent)
	if via := one[string](o, `SELECT via FROM outbox.queue WHERE intent_id = $1`, intent); via != "spare" {
		t.Errorf("the row is requeued via %q, want spare", via)
	}
}

func TestAnAcceptedDuplicateIsSentAndKeepsItsDoubt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.end(keyed, dispatch.Ambiguous)
	o.end(keyed, dispatch.Rejected)
	o.forgetKey(intent)

	retry := operator.Retry{PolicyOf: configured(keyed)}
	o.assertRefused(retry, intent)
	retry.MayDuplicate = true
	o.mustChange(retry, intent)
	row := o.claim()[0]
	if !keyed.MayStillSend(dispatch.History{MaybeApplied: row.MaybeApplied, SinceFirstSend: row.SinceFirstSend}) {
		t.Errorf("the engine would not send %+v", row)
	}
	o.settle(keyed, dispatch.Rejected, row)
	o.assertStatus(intent, "unknown")
	if got := o.history(intent)[2]; got != "3 operator:on-call retried_may_duplicate pending" {
		t.Errorf("the history says %q", got)
	}
}

// An operator accepts a duplicate for one retry only. The next retry counts from the first send since then, and from the
// first send of all if there was none.
func TestTheAgeOfADoubtCountsFromTheLastAcceptedDuplicate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		since   dispatch.Outcome
		refused bool
	}{
		"sent since":     {dispatch.Ambiguous, false},
		"not sent since": {dispatch.NotSent, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			intent := o.enqueue("run", 1)[0]
			hasty := keyed
			hasty.MaxAttempts = 1
			o.end(hasty, dispatch.Ambiguous)
			o.forgetKey(intent)
			o.mustChange(operator.Retry{MayDuplicate: true}, intent)
			o.end(hasty, test.since)
			o.assertStatus(intent, "unknown")
			if verdict := o.change(operator.Retry{PolicyOf: configured(keyed)}, intent); (verdict.Refused != "") != test.refused {
				t.Errorf("refused because %q", verdict.Refused)
			}
		})
	}
}

// forgetKey makes the intent's attempts older than the life of its key.
func (o *outbox) forgetKey(intent int64) {
	o.t.Helper()
	o.exec(`UPDATE outbox.attempt SET started_at = started_at - interval '25 hours' WHERE intent_id = $1`, intent)
}

func TestADecisionOnAnUnknownIntentResolvesItsIncident(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]operator.Action{
		"retry":   operator.Retry{MayDuplicate: true},
		"resolve": operator.Resolve{As: dispatch.StatusFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			intents := o.enqueue("run", 2)
			o.end(once, dispatch.Ambiguous)
			o.mustChange(action, intents[0])
			if own, other := o.openIncidents(intents[0]), o.openIncidents(intents[1]); own != 0 || other != 1 {
				t.Errorf("%d incidents of it and %d of another one are open, want only the other one", own, other)
			}
			who := one[string](o, `SELECT resolved_by FROM outbox.incident WHERE intent_id = $1`, intents[0])
			if who != "operator:on-call" {
				t.Errorf("resolved by %q", who)
			}
		})
	}
}

func TestARetryThatEndsUnknownAgainOpensTheIncidentAgain(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	for generation := 1; generation <= 2; generation++ {
		o.end(once, dispatch.Ambiguous)
		if open := o.openIncidents(intent); open != 1 {
			t.Fatalf("%d incidents are open, want one", open)
		}
		if got := one[int](o, `SELECT generation FROM outbox.incident WHERE intent_id = $1`, intent); got != generation {
			t.Errorf("it was opened %d times, want %d", got, generation)
		}
		o.mustChange(operator.Retry{MayDuplicate: true}, intent)
	}
}

func TestAResolutionSettlesWithTheProvidersReference(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.end(once, dispatch.Ambiguous)

	o.mustChange(operator.Resolve{As: dispatch.StatusCompleted, ProviderRef: "ch_1"}, intent)
	o.assertStatus(intent, "completed")
	if ref := one[string](o, `SELECT provider_ref FROM outbox.status WHERE intent_id = $1`, intent); ref != "ch_1" {
		t.Errorf("the reference is %q", ref)
	}
	o.assertRefused(operator.Retry{MayDuplicate: true}, intent)
	o.mustChange(operator.Resolve{As: dispatch.StatusFailed}, intent)
	o.mustChange(operator.Retry{}, intent)
}

func TestWhatWaitsInDoubtIsResolvedOutOfTheQueue(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]dispatch.Policy{"in doubt": keyed, "to be looked up": asked} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			intent := o.enqueue("run", 1)[0]
			o.end(policy, dispatch.Ambiguous)
			o.assertRefused(operator.Cancel{}, intent)
			o.assertRefused(operator.Retry{MayDuplicate: true}, intent)
			o.mustChange(operator.Resolve{As: dispatch.StatusCompleted}, intent)
			o.assertStatus(intent, "completed")
			if rows := o.claim(); len(rows) != 0 {
				t.Errorf("%d rows are still in the queue", len(rows))
			}
		})
	}
}

func TestARunUnderCompensationTakesNoRetry(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.end(keyed, dispatch.Rejected)
	o.exec(`INSERT INTO outbox.saga (agent_run_id, cause) VALUES ('run', $1)`, intent)
	o.assertRefused(operator.Retry{}, intent)
}

func TestAnUnsignedChangeIsRefused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	_, err := o.console().Change(t.Context(), operator.Cancel{}, operator.Signature{Operator: "on-call"}, []int64{intent})
	if !errors.Is(err, operator.ErrUnsigned) {
		t.Errorf("got %v", err)
	}
	o.assertStatus(intent, "pending")
}

func TestAPreviewChangesNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intents := o.enqueue("failed", 1)
	o.end(keyed, dispatch.Rejected)
	intents = append(intents, o.enqueue("waiting", 1)...)
	for _, action := range []operator.Action{operator.Cancel{}, operator.Retry{}, operator.Resolve{As: dispatch.StatusCompleted}} {
		before := o.snapshot()
		verdicts, err := o.console().Preview(t.Context(), action, intents)
		if err != nil || len(verdicts) != 2 {
			t.Fatalf("%d verdicts, %v", len(verdicts), err)
		}
		if after := o.snapshot(); !slices.Equal(before, after) {
			t.Errorf("a preview of %T changed %v to %v", action, before, after)
		}
	}
}

func (o *outbox) snapshot() []string {
	return all[string](o, `SELECT q::text FROM outbox.queue q UNION ALL SELECT a::text FROM outbox.attempt a ORDER BY 1`)
}

func TestABulkChangeGoesOnOverItsBatches(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intents := o.enqueue("run", 450)
	o.end(keyed, dispatch.Rejected)
	verdicts, err := o.console().Change(t.Context(), operator.Retry{}, onCall, append(intents, 1_000_000))
	if err != nil || len(verdicts) != len(intents) {
		t.Fatalf("%d verdicts, %v; want one for each intent that exists", len(verdicts), err)
	}
	if rows := o.claim(); len(rows) != len(intents) {
		t.Errorf("%d rows were requeued, want all %d", len(rows), len(intents))
	}
}

// A provider asked for a wait of a year. The operator ends the wait. The tries, the doubt and its age stay, and so does
// a lookup.
func TestARowThatWaitsIsBroughtForwardAndNothingElseOfItChanges(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.end(keyed, dispatch.Ambiguous)
	const past = `SELECT tries || ' ' || first_attempt_at || ' ' || maybe_applied || ' ' || lookup FROM outbox.queue WHERE intent_id = $1`
	before := one[string](o, past, intent)
	o.assertRefused(operator.BringForward{}, intent) // it is due

	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 year'`)
	if rows := o.claim(); len(rows) != 0 {
		t.Fatal("the test parks nothing")
	}
	o.mustChange(operator.BringForward{}, intent)
	if after := one[string](o, past, intent); after != before {
		t.Errorf("the row was %s and is %s", before, after)
	}
	rows := o.claim()
	if len(rows) != 1 || rows[0].Attempt != 3 || rows[0].Tries != 2 || !rows[0].MaybeApplied {
		t.Fatalf("claimed %+v, want attempt 3 as try 2, in doubt", rows)
	}
	o.assertRefused(operator.BringForward{}, intent) // it is in flight
	o.settle(keyed, dispatch.Completed, rows...)
	want := []string{"1 worker ambiguous pending", "2 operator:on-call brought_forward pending", "3 worker completed completed"}
	if got := o.history(intent); !slices.Equal(got, want) {
		t.Errorf("the history is %q, want %q", got, want)
	}
	if reason := one[string](o, `SELECT reason FROM outbox.attempt WHERE outcome = 'brought_forward'`); reason != "because" {
		t.Errorf("the reason is %q", reason)
	}
}

// The first lookup must wait until the send in doubt can no longer arrive.
func TestAQuestionIsBroughtForwardOnlyOnceItWasAsked(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.end(asked, dispatch.Ambiguous)
	park := `UPDATE outbox.queue SET next_attempt_at = now() + interval '1 year'`
	o.exec(park)
	o.assertRefused(operator.BringForward{}, intent)

	o.exec(`UPDATE outbox.queue SET next_attempt_at = now()`)
	o.end(asked, dispatch.Throttled)
	o.exec(park)
	o.mustChange(operator.BringForward{}, intent)
	o.assertStatus(intent, "unknown")
	if rows := o.claim(); len(rows) != 1 || !rows[0].Lookup {
		t.Errorf("claimed %+v, want the question", rows)
	}
}

func TestManyAreBroughtForwardButNotWhatAgentsScheduled(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	waits := o.enqueue("waits", 2)
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 year'`)
	due := o.enqueue("due", 1)[0]
	later := one[int64](o, `INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, not_before)
		VALUES ('later', 's', 'sim/act', 'b', '{}', now() + interval '1 day') RETURNING id`)
	chosen, _, err := o.console().Select(t.Context(), operator.Selection{Statuses: []string{"pending", "unknown"}, Waiting: true, Limit: 10})
	if err != nil || !slices.Equal(chosen, append(slices.Clone(waits), later)) {
		t.Fatalf("chosen are %v (%v), want those that wait, without %d", chosen, err, due)
	}
	verdicts, err := o.console().Change(t.Context(), operator.BringForward{}, onCall, chosen)
	if err != nil {
		t.Fatal(err)
	}
	if refused := verdicts[2].Refused; refused == "" || verdicts[0].Refused+verdicts[1].Refused != "" {
		t.Errorf("the verdicts are %+v, want only the scheduled one refused", verdicts)
	}
	o.mustChange(operator.BringForward{Scheduled: true}, later)
	if rows := o.claim(); len(rows) != 4 {
		t.Errorf("%d of 4 are due", len(rows))
	}
}

// The provider saved the refusal with the key. All later attempts use the new key, also after a release, a retry and a
// worker's death, until an operator asks for the next one.
func TestANewKeyIsKeptUntilAnOperatorAsksForTheNext(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	first := o.key(intent)
	o.end(keyed, dispatch.Rejected)
	o.mustChange(operator.Retry{}, intent)
	if o.key(intent) != first {
		t.Error("a retry without --new-key changes the key")
	}
	o.end(keyed, dispatch.Rejected)
	o.mustChange(operator.Retry{NewKey: true}, intent)
	second := o.key(intent)
	if second == first {
		t.Fatal("the key is the same")
	}
	o.end(keyed, dispatch.Released)
	o.end(keyed, dispatch.Throttled)
	row := o.claim()[0]
	if row.Key.Generation != 2 || row.OlderDoubt || row.FirstAttemptAt == nil {
		t.Fatalf("claimed %+v, want the second generation, in no doubt", row)
	}
	if sent := one[bool](o, `SELECT $2 >= (SELECT finished_at FROM outbox.attempt WHERE intent_id = $1 AND outcome = 'retried_new_key')`, intent, *row.FirstAttemptAt); !sent {
		t.Error("the clock of the new key began with the old one")
	}
	o.exec(`DELETE FROM outbox.worker WHERE worker_id = $1`, o.worker)
	o.worker = o.join()
	if _, err := o.store.Reap(t.Context(), []string{"sim"}, func(row *drainer.Row) (drainer.Settlement, bool) {
		if row.Key.Generation != 2 {
			t.Errorf("the reaper reads %+v", row)
		}
		return settling(keyed, dispatch.Lost, row).Settle[0], true
	}); err != nil {
		t.Fatal(err)
	}
	if row = o.claim()[0]; row.Key.Generation != 2 || o.key(intent) != second {
		t.Errorf("after its worker's death it is of generation %d", row.Key.Generation)
	}
	o.settle(keyed, dispatch.Rejected, row)
	o.assertStatus(intent, "unknown") // the dead worker's request may have been applied
	o.assertRefused(operator.Retry{NewKey: true, PolicyOf: configured(keyed)}, intent)
	o.mustChange(operator.Resolve{As: dispatch.StatusFailed}, intent)
	o.mustChange(operator.Retry{NewKey: true}, intent)
	if third := o.key(intent); third == first || third == second {
		t.Errorf("the third key is %s again", third)
	}
	keys := map[string]int{}
	dossier, err := o.console().Show(t.Context(), intent)
	if err != nil {
		t.Fatal(err)
	}
	for _, attempt := range dossier.History {
		keys[attempt.IdempotencyKey]++
	}
	if len(keys) != 3 || keys[first] != 3 || keys[second] != 6 || keys[o.key(intent)] != 1 {
		t.Errorf("the history has the keys %v, want 3 of the first and 6 of the second", keys)
	}
}

// A request under the old key may still arrive, and a lookup by the new key cannot find it.
func TestANewKeyDoesNotSettleTheDoubtOfTheOldOne(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.end(once, dispatch.Ambiguous)
	o.assertRefused(operator.Retry{NewKey: true}, intent)
	o.mustChange(operator.Retry{NewKey: true, MayDuplicate: true}, intent)
	if want, got := "2 operator:on-call retried_new_key_may_duplicate pending", o.history(intent)[1]; got != want {
		t.Errorf("the history has %q, want %q", got, want)
	}
	o.end(asked, dispatch.Rejected)
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now()`)
	row := o.claim()[0]
	if !row.Lookup || !row.OlderDoubt {
		t.Fatalf("claimed %+v, want a question, in doubt since the old key", row)
	}
	history := row.History(time.Time{}, time.Now())
	if got := asked.Decide(history, dispatch.Result{Outcome: dispatch.Absent}, 0); got.Status != dispatch.StatusUnknown || got.Lookup {
		t.Errorf("absence under the new key makes it %+v, want it left unknown", got)
	}
}

var actions = []operator.Action{
	operator.Retry{PolicyOf: configured(keyed)},
	operator.Retry{MayDuplicate: true},
	operator.Cancel{},
	operator.Resolve{As: dispatch.StatusCompleted},
	operator.Resolve{As: dispatch.StatusFailed},
}

// Operators apply random actions to all intents while workers drain them. In any order, every intent stays in one
// place, every change that was reported to an operator is in the history once, and no attempt number is missing or used
// twice.
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
	if recorded := one[int64](o, `SELECT count(*) FROM outbox.attempt WHERE operator IS NOT NULL`); recorded != changed.Load() {
		t.Errorf("%d changes are recorded, and %d were reported to operators", recorded, changed.Load())
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

// drainUntil drains as a worker whose provider answers at random.
func (o *outbox) drainUntil(done <-chan struct{}, worker string) {
	outcomes := []dispatch.Outcome{dispatch.Completed, dispatch.Rejected, dispatch.Ambiguous, dispatch.Throttled, dispatch.Absent}
	policies := []dispatch.Policy{keyed, once, asked}
	for {
		reply, err := o.store.Commit(o.t.Context(), worker, drainer.Batch{Claims: []drainer.Claim{{Provider: "sim", Server: "sim", Limit: 7}}})
		if err != nil {
			o.t.Error(err)
			return
		}
		var settle drainer.Batch
		for _, row := range reply.Claimed[0].Rows {
			one := settling(policies[rand.IntN(len(policies))], outcomes[rand.IntN(len(outcomes))], row)
			settle.Settle, settle.Finish = append(settle.Settle, one.Settle...), one.Finish
		}
		settled, err := o.store.Commit(o.t.Context(), worker, settle)
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

// A decision holds for the row as the operator saw it, and for no later state of the row.
func TestAnIntentThatMovedSinceTheDecisionIsLeftAlone(t *testing.T) {
	t.Parallel()
	claimed := func(o *outbox, _ int64) { o.claim() }
	tried := func(o *outbox, _ int64) { o.end(keyed, dispatch.Throttled) }
	doubted := func(o *outbox, _ int64) { o.end(keyed, dispatch.Ambiguous) }
	waits := func(*outbox, int64) {}
	completed := operator.Resolve{As: dispatch.StatusCompleted}

	for name, test := range map[string]struct {
		before    func(*outbox, int64)
		action    operator.Action
		meanwhile func(*outbox, int64)
	}{
		"cancelled while a worker claims": {waits, operator.Cancel{}, claimed},
		"cancelled while a worker tries":  {waits, operator.Cancel{}, tried},
		"resolved while a worker claims":  {doubted, completed, claimed},
		"resolved while a worker tries":   {doubted, completed, doubted},
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

// The second operator sees the decision of the first one.
func TestOperatorsWhoDecideOnOneIntentTakeTurns(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before func(*outbox)
		action operator.Action
	}{
		"both retry":                {func(o *outbox) { o.end(keyed, dispatch.Rejected) }, operator.Retry{}},
		"one resolves, one retries": {func(o *outbox) { o.end(once, dispatch.Ambiguous) }, operator.Resolve{As: dispatch.StatusCompleted}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			intent := o.enqueue("run", 1)[0]
			test.before(o)
			second, late := o.console(), make(chan []operator.Verdict, 1)
			first := o.change(operator.Meanwhile{Action: test.action, Do: func() {
				go func() {
					verdicts, err := second.Change(t.Context(), operator.Retry{MayDuplicate: true}, onCall, []int64{intent})
					if err != nil {
						t.Error(err)
					}
					late <- verdicts
				}()
				drainertest.AwaitBlocked(t, o.db)
			}}, intent)
			if first.Refused != "" {
				t.Errorf("the first was refused because %q", first.Refused)
			}
			if verdicts := <-late; len(verdicts) != 1 || verdicts[0].Refused == "" {
				t.Errorf("the second got %+v, want a refusal", verdicts)
			}
		})
	}
}

// A claim that has not committed yet holds the row, so the operator is refused. The claim may still be rolled back.
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
	if _, err := tx.Exec(t.Context(), `INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status)
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
	drainertest.AwaitBlocked(t, o.db)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if late := <-verdicts; len(late) != 1 || late[0].Refused == "" {
		t.Errorf("the later one got %+v", late)
	}
	o.assertStatus(intent, "completed")
	drainertest.AssertInvariant(t, o.db)
}

// An intent that is being pruned gets no more history.
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
	drainertest.AwaitBlocked(t, o.db)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if late := <-verdicts; len(late) != 0 {
		t.Errorf("it got %+v", late)
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

func TestAPersonEnqueuesWhereAgentsHaveToWriteTheirStateBefore(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	drainertest.Exec(t, o.db, `INSERT INTO outbox.setting VALUES ('require_state', 'error')`)
	tuple := dispatch.Tuple{AgentRunID: "run", StepID: "step", ToolName: "sim/act", BusinessScope: "scope"}
	for _, created := range []bool{true, false} {
		if receipt, err := o.console().Enqueue(t.Context(), tuple, json.RawMessage(`{}`)); err != nil || receipt.Created != created {
			t.Errorf("%+v, %v", receipt, err)
		}
	}
}

func TestARequestThatDoesNotReachTheDatabaseSaysWhatItWas(t *testing.T) {
	t.Parallel()
	c := newOutbox(t).console()
	c.Close(t.Context())
	ctx := t.Context()
	tuple := dispatch.Tuple{AgentRunID: "run", StepID: "step", ToolName: "sim/act", BusinessScope: "scope"}
	for want, ask := range map[string]func() error{
		"enqueue: ":                      func() error { _, err := c.Enqueue(ctx, tuple, json.RawMessage(`{}`)); return err },
		"list intents: ":                 func() error { _, err := c.List(ctx, operator.Filter{Limit: 1}); return err },
		"show intent: ":                  func() error { _, err := c.Show(ctx, 1); return err },
		"find intent: ":                  func() error { _, err := c.Find(ctx, tuple); return err },
		"find the intent's run: ":        func() error { _, err := c.RunOf(ctx, 1); return err },
		"select intents: ":               func() error { _, _, err := c.Select(ctx, operator.Selection{Limit: 1}); return err },
		"read where the intents stand: ": func() error { _, err := c.Preview(ctx, operator.Cancel{}, []int64{1}); return err },
		"change intents: ":               func() error { _, err := c.Change(ctx, operator.Cancel{}, onCall, []int64{1}); return err },
		"list incidents: ":               func() error { _, err := c.Incidents(ctx, operator.IncidentFilter{Limit: 1}); return err },
		"acknowledge incidents: ":        func() error { _, err := c.Acknowledge(ctx, onCall, []int64{1}, time.Time{}); return err },
		"list providers: ":               func() error { _, err := c.Provider(ctx, "sim"); return err },
		"pause or resume a provider: ":   func() error { _, err := c.Pause(ctx, "sim", onCall); return err },
		"read the overview: ":            func() error { _, err := c.Overview(ctx); return err },
		"list sagas: ":                   func() error { _, err := c.Sagas(ctx, operator.SagaFilter{Limit: 1}); return err },
		"show the saga: ":                func() error { _, err := c.SagaOf(ctx, "run"); return err },
		"change the saga: ":              func() error { return c.Compensate(ctx, "run", onCall) },
	} {
		if err := ask(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("it says %v, want %q", err, want)
		}
	}
}

func TestAChangeThatFailsHalfWayChangesNothing(t *testing.T) {
	t.Parallel()
	for fails, breaks := range map[string]string{
		"hold the intents":             `ALTER FUNCTION outbox.hold RENAME TO away`,
		"read where the intents stand": `ALTER VIEW outbox.standing RENAME TO away`,
		"append to the history":        `ALTER TABLE outbox.attempt RENAME reason TO away`,
	} {
		t.Run(fails, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t)
			intents := o.enqueue("run", 2)
			o.exec(breaks)
			if verdicts, err := o.console().Change(t.Context(), operator.Cancel{}, onCall, intents); err == nil || !strings.Contains(err.Error(), ": "+fails+": ") {
				t.Errorf("%v, and it says %v, want that it could not %s", verdicts, err, fails)
			}
			if queued := one[int](o, `SELECT count(*) FROM outbox.queue`); queued != 2 {
				t.Errorf("%d intents are left in the queue, want both", queued)
			}
		})
	}
}

func TestTheRestOfAStoryThatCannotBeReadIsNotLeftOutInSilence(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	intent := o.enqueue("run", 1)[0]
	o.exec(`INSERT INTO outbox.saga (agent_run_id) VALUES ('run')`)
	o.exec(`ALTER TABLE outbox.attempt RENAME reason TO away`)
	if dossier, err := o.console().Show(t.Context(), intent); err == nil || !strings.HasPrefix(err.Error(), "read the intent's history: ") {
		t.Errorf("%+v, %v", dossier, err)
	}
	if story, err := o.console().SagaOf(t.Context(), "run"); err == nil || story != nil {
		t.Errorf("%+v, %v", story, err)
	}
	o.exec(`ALTER VIEW outbox.standing RENAME TO away`)
	if story, err := o.console().SagaOf(t.Context(), "run"); err == nil || story != nil {
		t.Errorf("%+v, %v", story, err)
	}
}

func TestACancelThatClosedTheRunAndGotNoFurtherSaysSo(t *testing.T) {
	t.Parallel()
	for fails, breaks := range map[string]string{
		"the run is closed, but take what waits out of the queue: ": `ALTER TABLE outbox.queue RENAME TO away`,
		"the run is closed, but read where it stands: ":             `ALTER VIEW outbox.standing RENAME TO away`,
	} {
		o := newOutbox(t)
		o.enqueue("run", 1)
		o.exec(breaks)
		if _, err := o.console().CancelRun(t.Context(), "run", false, onCall); err == nil || !strings.HasPrefix(err.Error(), fails) {
			t.Errorf("it says %v, want %q", err, fails)
		}
		if state := one[string](o, `SELECT state FROM outbox.saga WHERE agent_run_id = 'run'`); state != "cancelled" {
			t.Errorf("the run is %s", state)
		}
	}
}

func TestASagaThatCannotGoOnStaysAsItWas(t *testing.T) {
	t.Parallel()
	retry := func(ctx context.Context, c *operator.Console) error {
		return c.RetrySaga(ctx, "run", nil, false, onCall)
	}
	resolve := func(ctx context.Context, c *operator.Console) error { return c.ResolveSaga(ctx, "run", onCall) }
	for _, test := range []struct {
		fails, breaks string
		do            func(context.Context, *operator.Console) error
	}{
		{"open its steps again: ", `ALTER TABLE outbox.attempt RENAME reason TO away`, retry},
		{"hold its undos: ", `ALTER TABLE outbox.intent RENAME compensates TO away`, retry},
		{"find undos that ended badly: ", `ALTER VIEW outbox.standing RENAME finished_at TO away`, retry},
		{"look for an undo that is under way: ", `ALTER VIEW outbox.standing RENAME finished_at TO away`, resolve},
	} {
		o := newOutbox(t)
		o.enqueue("run", 1)
		o.exec(`INSERT INTO outbox.saga (agent_run_id, state) VALUES ('run', 'compensation_failed')`)
		o.exec(test.breaks)
		if err := test.do(t.Context(), o.console()); err == nil || !strings.Contains(err.Error(), test.fails) {
			t.Errorf("it says %v, want %q", err, test.fails)
		}
		if state := one[string](o, `SELECT state FROM outbox.saga WHERE agent_run_id = 'run'`); state != "compensation_failed" {
			t.Errorf("%s: the saga is %s", test.fails, state)
		}
	}
}

func TestAnOverviewIsWholeOrAnError(t *testing.T) {
	t.Parallel()
	for _, missing := range []string{"worker", "collisions", "incident"} {
		o := newOutbox(t)
		kind := "TABLE"
		if missing == "collisions" {
			kind = "SEQUENCE"
		}
		o.exec(`ALTER ` + kind + ` outbox.` + missing + ` RENAME TO away`)
		if overview, err := o.console().Overview(t.Context()); err == nil {
			t.Errorf("without %s it is %+v", missing, overview)
		}
	}
}

// A daemon finds the loss while an operator denies it. The operator waits for the daemon, and cannot deny a known loss.
func TestALossThatIsFoundMeanwhileIsNotDenied(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`DELETE FROM outbox.history`)
	o.exec(`INSERT INTO outbox.history (id, table_oid, database_oid, change, era, doubted_before) VALUES (1, 'outbox.history'::regclass, 1, 'another timeline', 1, 0)`)
	finding := drainertest.Begin(t, o.db)
	drainertest.Exec(t, finding, `UPDATE outbox.history SET lost = true`)
	denied := make(chan error, 1)
	console := o.console()
	go func() {
		_, err := console.AcceptHistory(t.Context(), 1, true, onCall)
		denied <- err
	}()
	drainertest.AwaitBlocked(t, o.db)
	if err := finding.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-denied; !errors.Is(err, operator.ErrLost) {
		t.Errorf("got %v, want that commits were lost", err)
	}
	if accepted := one[bool](o, `SELECT accepted_by IS NOT NULL FROM outbox.history`); accepted {
		t.Error("it is accepted as lossless")
	}
	if accepted, err := console.AcceptHistory(t.Context(), 1, false, onCall); err != nil || !accepted {
		t.Errorf("as one that lacks commits: %t, %v", accepted, err)
	}
}
