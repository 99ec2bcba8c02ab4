package dispatch_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/integration/fault"
)

func policy(class dispatch.Class) dispatch.Policy {
	return dispatch.Policy{
		Class:       class,
		KeyTTL:      24 * time.Hour,
		MaxAttempts: 8,
		Backoff:     dispatch.Backoff{Base: time.Second, Cap: time.Minute},
	}
}

const (
	pending   = dispatch.StatusPending
	completed = dispatch.StatusCompleted
	failed    = dispatch.StatusFailed
	unknown   = dispatch.StatusUnknown
)

// Each row is one outcome after a first try, and after a try that may have been
// applied. repeatable is the status after each outcome for the three safe
// classes.
func TestTheOutcomeTable(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		outcome                       dispatch.Outcome
		repeatable, repeatableInDoubt dispatch.Status
		once, onceInDoubt             dispatch.Status
		doubt                         bool // may have been applied, from now on
	}{
		{dispatch.Completed, completed, completed, completed, completed, false},
		{dispatch.NotSent, pending, pending, pending, unknown, false},
		{dispatch.Throttled, pending, pending, pending, unknown, false},
		{dispatch.Rejected, failed, unknown, failed, unknown, false},
		{dispatch.CredentialsRefused, pending, pending, pending, pending, false},
		{dispatch.Forbidden, pending, pending, pending, pending, false},
		{dispatch.Absent, failed, unknown, failed, unknown, false},
		{dispatch.Ambiguous, pending, pending, unknown, unknown, true},
		{dispatch.InFlight, pending, pending, unknown, unknown, true},
		{dispatch.Released, pending, pending, pending, pending, false},
		{dispatch.Lost, pending, pending, unknown, unknown, true},
	} {
		for _, class := range dispatch.Classes() {
			fresh, inDoubt := row.repeatable, row.repeatableInDoubt
			if class == dispatch.NonIdempotent {
				fresh, inDoubt = row.once, row.onceInDoubt
			}
			name := fmt.Sprintf("%s %s", class, row.outcome)
			first := policy(class).Decide(dispatch.History{Tries: 1}, dispatch.Result{Outcome: row.outcome}, 0.5)
			if first.Status != fresh || first.MaybeApplied != row.doubt {
				t.Errorf("%s: %+v, want %s, maybe applied %v", name, first, fresh, row.doubt)
			}
			second := policy(class).Decide(dispatch.History{Tries: 2, MaybeApplied: true}, dispatch.Result{Outcome: row.outcome}, 0.5)
			if second.Status != inDoubt || second.MaybeApplied != (row.outcome != dispatch.Completed) {
				t.Errorf("%s in doubt: %+v, want %s", name, second, inDoubt)
			}
		}
	}
}

// An accepted duplicate is one send: what was not sent may be tried again, and
// whatever else came of it, the doubt is as before.
func TestAnAcceptedDuplicateIsOneSend(t *testing.T) {
	t.Parallel()
	policy := policy(dispatch.NonIdempotent)
	accepted := dispatch.History{Tries: 1, MaybeApplied: true, Accepted: true}
	if !policy.MayStillSend(accepted) {
		t.Error("it is not sent")
	}
	for outcome, want := range map[dispatch.Outcome]dispatch.Status{
		dispatch.Completed: completed, dispatch.NotSent: pending, dispatch.Released: pending, dispatch.Throttled: unknown,
		dispatch.Rejected: unknown, dispatch.Ambiguous: unknown, dispatch.InFlight: unknown, dispatch.Lost: unknown,
	} {
		if got := policy.Decide(accepted, dispatch.Result{Outcome: outcome}, 0.5); got.Status != want {
			t.Errorf("%s: %+v, want %s", outcome, got, want)
		}
	}
}

func TestAnAttemptThatWasReleasedOrRefusedThisSideIsNotCounted(t *testing.T) {
	t.Parallel()
	for _, outcome := range dispatch.Outcomes() {
		want := 3
		if outcome == dispatch.Released || outcome.RefusesUs() {
			want = 2
		}
		got := policy(dispatch.KeyIdempotent).Decide(dispatch.History{Tries: 3}, dispatch.Result{Outcome: outcome}, 0)
		if got.Tries != want {
			t.Errorf("%s: %d tries, want %d", outcome, got.Tries, want)
		}
	}
}

func TestTheLastTrySettles(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		outcome dispatch.Outcome
		inDoubt bool
		want    dispatch.Status
	}{
		{dispatch.NotSent, false, failed},
		{dispatch.NotSent, true, unknown},
		{dispatch.Throttled, false, failed},
		{dispatch.Throttled, true, unknown},
		{dispatch.Ambiguous, false, unknown},
		{dispatch.InFlight, false, unknown},
		{dispatch.Lost, false, unknown},
		{dispatch.Released, true, pending},
	} {
		history := dispatch.History{Tries: 8, MaybeApplied: test.inDoubt}
		if got := policy(dispatch.KeyIdempotent).Decide(history, dispatch.Result{Outcome: test.outcome}, 0); got.Status != test.want {
			t.Errorf("%s, in doubt %v: %s, want %s", test.outcome, test.inDoubt, got.Status, test.want)
		}
	}
}

func TestNoRetryOnceTheProviderMayHaveForgottenTheKey(t *testing.T) {
	t.Parallel()
	const half = 12 * time.Hour
	for _, test := range []struct {
		name    string
		class   dispatch.Class
		history dispatch.History
		result  dispatch.Result
		want    dispatch.Status
	}{
		{"within", dispatch.KeyIdempotent, dispatch.History{Tries: 2, SinceFirstSend: half - time.Second}, dispatch.Result{Outcome: dispatch.Ambiguous}, pending},
		{"past", dispatch.KeyIdempotent, dispatch.History{Tries: 2, SinceFirstSend: half}, dispatch.Result{Outcome: dispatch.Ambiguous}, unknown},
		{"the delay would pass it", dispatch.KeyIdempotent, dispatch.History{Tries: 2, SinceFirstSend: time.Hour, MaybeApplied: true}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: half}, unknown},
		{"an endless delay", dispatch.KeyIdempotent, dispatch.History{Tries: 2, SinceFirstSend: time.Hour, MaybeApplied: true}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: math.MaxInt64}, unknown},
		{"nothing was applied", dispatch.KeyIdempotent, dispatch.History{Tries: 2, SinceFirstSend: half}, dispatch.Result{Outcome: dispatch.Throttled}, pending},
		{"needs no key", dispatch.NaturallyIdempotent, dispatch.History{Tries: 2, SinceFirstSend: half}, dispatch.Result{Outcome: dispatch.Ambiguous}, pending},
	} {
		if got := policy(test.class).Decide(test.history, test.result, 0); got.Status != test.want {
			t.Errorf("%s: %s, want %s", test.name, got.Status, test.want)
		}
	}
}

func TestARetryNeverPrecedesRetryAfter(t *testing.T) {
	t.Parallel()
	retries := 0
	rapid.Check(t, func(t *rapid.T) {
		class := rapid.SampledFrom(dispatch.Classes()).Draw(t, "class")
		history := dispatch.History{
			Tries:          rapid.IntRange(1, 10).Draw(t, "tries"),
			SinceFirstSend: time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "since")),
			MaybeApplied:   rapid.Bool().Draw(t, "maybe"),
		}
		result := dispatch.Result{
			Outcome:    rapid.SampledFrom(dispatch.Outcomes()).Draw(t, "outcome"),
			RetryAfter: time.Duration(rapid.Int64().Draw(t, "retryAfter")),
		}
		got := policy(class).Decide(history, result, rapid.Float64Range(0, almostOne).Draw(t, "fraction"))
		if got.Status == pending && result.RetryAfter != 0 {
			retries++
		}
		if got.Status == pending && (got.Delay < result.RetryAfter || got.Delay < 0) {
			t.Fatalf("delay %s, Retry-After %s", got.Delay, result.RetryAfter)
		}
		if history.MaybeApplied && got.Status == failed {
			t.Fatal("doubt was forgotten")
		}
		if history.MaybeApplied && got.Status == pending && !got.MaybeApplied {
			t.Fatal("doubt was dropped on the way to the queue")
		}
	})
	fault.Injected(t, 34, retries)
}

func TestMayStillSend(t *testing.T) {
	t.Parallel()
	key := policy(dispatch.KeyIdempotent)
	for _, test := range []struct {
		history dispatch.History
		want    bool
	}{
		{dispatch.History{}, true},
		{dispatch.History{SinceFirstSend: 48 * time.Hour}, true},
		{dispatch.History{SinceFirstSend: time.Hour, MaybeApplied: true}, true},
		{dispatch.History{SinceFirstSend: 12 * time.Hour, MaybeApplied: true}, false},
	} {
		if got := key.MayStillSend(test.history); got != test.want {
			t.Errorf("%+v: %v, want %v", test.history, got, test.want)
		}
	}
}

// A year for a minute is a slip that providers make. Neither an intent nor an undo
// nor a question is to be parked by it.
func TestNoProviderParksARowForLongerThanMaxWait(t *testing.T) {
	t.Parallel()
	bounded := 0
	rapid.Check(t, func(t *rapid.T) {
		policy := policy(rapid.SampledFrom(dispatch.Classes()).Draw(t, "class"))
		policy.MaxWait = time.Duration(rapid.Int64Range(1, int64(48*time.Hour)).Draw(t, "maxWait"))
		policy.Lookup = &dispatch.Lookup{Operation: "find"}
		history := dispatch.History{Tries: rapid.IntRange(1, 10).Draw(t, "tries"), Lookup: rapid.Bool().Draw(t, "lookup")}
		history.MaybeApplied = history.Lookup
		result := dispatch.Result{
			Outcome:    rapid.SampledFrom(dispatch.Outcomes()).Draw(t, "outcome"),
			RetryAfter: policy.MaxWait + time.Duration(rapid.Int64Range(1, math.MaxInt64-int64(policy.MaxWait)).Draw(t, "too long")),
		}
		if result.Outcome == dispatch.Released {
			return // the engine's own delay
		}
		got := policy.Decide(history, result, rapid.Float64Range(0, almostOne).Draw(t, "fraction"))
		if got.Back() && got.Delay > policy.MaxWait+policy.Backoff.Cap {
			t.Fatalf("a Retry-After of %s parks it for %s, max_wait is %s", result.RetryAfter, got.Delay, policy.MaxWait)
		}
		if got.Back() && got.Delay >= policy.MaxWait {
			bounded++
		}
	})
	fault.Injected(t, 80, bounded)
}
