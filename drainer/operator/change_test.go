package operator_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
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

// The engine computed the row's past before; the operator must read the same.
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
		t.Errorf("the row goes back via %q, want spare", via)
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

// A duplicate that was accepted is accepted once: the next retry counts from
// what was sent since then, and from the beginning if nothing was.
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

// forgetKey ages what was sent beyond the life of its key.
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
		t.Errorf("%d rows went back, want all %d", len(rows), len(intents))
	}
}
