package dispatch_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
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

// Each row has one outcome and the statuses that follow it, after a first try and after a try that may have been
// applied. repeatable is for the three classes that are safe to repeat, once for the other one.
func TestTheOutcomeTable(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		outcome                       dispatch.Outcome
		repeatable, repeatableInDoubt dispatch.Status
		once, onceInDoubt             dispatch.Status
		doubt                         bool // the intent may have been applied, from now on
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

// An accepted duplicate permits one more send. A row that was not sent may be tried again. After any other outcome
// but a completion it is in doubt as before.
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

// Some providers send a year where they mean a minute. Such a Retry-After must not park an intent, an undo or a
// lookup.
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

// asking returns a policy whose provider answers lookups.
func asking(class dispatch.Class) dispatch.Policy {
	p := policy(class)
	p.Timeout = 30 * time.Second
	p.Lookup = &dispatch.Lookup{Operation: "find", Margin: 10 * time.Second}
	return p
}

func TestDoubtThatEndsTheAttemptsIsLookedUp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		class   dispatch.Class
		history dispatch.History
		result  dispatch.Result
		wait    time.Duration
	}{
		{"an ambiguous attempt at what must not be repeated", dispatch.NonIdempotent, dispatch.History{Tries: 1, SinceStart: 5 * time.Second}, dispatch.Result{Outcome: dispatch.Ambiguous}, 35 * time.Second},
		{"a lost worker may have sent until a moment ago", dispatch.NonIdempotent, dispatch.History{Tries: 1, SinceStart: time.Hour}, dispatch.Result{Outcome: dispatch.Lost}, 40 * time.Second},
		{"an attempt that used up its timeout", dispatch.NonIdempotent, dispatch.History{Tries: 1, SinceStart: time.Minute}, dispatch.Result{Outcome: dispatch.Ambiguous}, 10 * time.Second},
		{"the last try", dispatch.KeyIdempotent, dispatch.History{Tries: 8, SinceStart: time.Minute}, dispatch.Result{Outcome: dispatch.Ambiguous}, 10 * time.Second},
		{"a refusal after doubt", dispatch.KeyIdempotent, dispatch.History{Tries: 2, SinceStart: time.Minute, MaybeApplied: true}, dispatch.Result{Outcome: dispatch.Rejected}, 10 * time.Second},
		{"an answer that no repetition can change", dispatch.KeyIdempotent, dispatch.History{Tries: 1, SinceStart: time.Minute}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true}, 10 * time.Second},
	} {
		want := dispatch.Decision{Status: unknown, Lookup: true, Delay: test.wait, Tries: test.history.Tries, MaybeApplied: true}
		if got := asking(test.class).Decide(test.history, test.result, 0); got != want {
			t.Errorf("%s: %+v, want %+v", test.name, got, want)
		}
	}
	got := asking(dispatch.NonIdempotent).Decide(dispatch.History{Tries: 1}, dispatch.Result{Outcome: dispatch.Rejected}, 0)
	if want := (dispatch.Decision{Status: failed, Tries: 1}); got != want {
		t.Errorf("a refusal without doubt needs no lookup: %+v, want %+v", got, want)
	}
}

func TestALookupDecides(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		class   dispatch.Class
		tries   int
		outcome dispatch.Outcome
		want    dispatch.Decision
	}{
		{"found", dispatch.NonIdempotent, 2, dispatch.Completed, dispatch.Decision{Status: completed, Tries: 2}},
		{"absent, and may be repeated", dispatch.KeyIdempotent, 3, dispatch.Absent, dispatch.Decision{Status: pending, Delay: 2 * time.Second, Tries: 3}},
		{"absent, and was the last try", dispatch.KeyIdempotent, 9, dispatch.Absent, dispatch.Decision{Status: failed, Tries: 9}},
		{"absent, and must not be repeated", dispatch.NonIdempotent, 2, dispatch.Absent, dispatch.Decision{Status: failed, Tries: 2}},
		{"does not answer", dispatch.NonIdempotent, 2, dispatch.Throttled, dispatch.Decision{Status: unknown, Delay: time.Second, Tries: 2, MaybeApplied: true, Lookup: true}},
		{"refused", dispatch.NonIdempotent, 2, dispatch.Rejected, dispatch.Decision{Status: unknown, Delay: time.Second, Tries: 2, MaybeApplied: true, Lookup: true}},
		{"given back", dispatch.NonIdempotent, 2, dispatch.Released, dispatch.Decision{Status: unknown, Tries: 1, MaybeApplied: true, Lookup: true}},
		{"refuses the credentials", dispatch.NonIdempotent, 16, dispatch.CredentialsRefused, dispatch.Decision{Status: unknown, Tries: 15, MaybeApplied: true, Lookup: true}},
		{"forbids it", dispatch.NonIdempotent, 16, dispatch.Forbidden, dispatch.Decision{Status: unknown, Tries: 15, MaybeApplied: true, Lookup: true}},
		{"does not answer for long", dispatch.NonIdempotent, 16, dispatch.Ambiguous, dispatch.Decision{Status: unknown, Delay: 30 * time.Second, Tries: 16, MaybeApplied: true}},
	} {
		history := dispatch.History{Tries: test.tries, MaybeApplied: true, Lookup: true}
		if got := asking(test.class).Decide(history, dispatch.Result{Outcome: test.outcome}, 0.5); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

func TestWithoutALookupAnAnswerThatCannotChangeIsUnknown(t *testing.T) {
	t.Parallel()
	got := policy(dispatch.KeyIdempotent).Decide(dispatch.History{Tries: 1}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true}, 0)
	if got.Status != unknown || got.Back() {
		t.Errorf("%+v, want unknown, settled", got)
	}
}

// The lost lookup may have come before the last send could arrive at the provider.
func TestALostLookupIsAskedAgainOnceTheLastSendHasLanded(t *testing.T) {
	t.Parallel()
	history := dispatch.History{Tries: 2, MaybeApplied: true, Lookup: true}
	lost := dispatch.Result{Outcome: dispatch.Lost}
	want := dispatch.Decision{Status: unknown, Lookup: true, Delay: 40 * time.Second, Tries: 2, MaybeApplied: true}
	if got := asking(dispatch.NonIdempotent).Decide(history, lost, 0); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := policy(dispatch.NonIdempotent).Decide(history, lost, 0); got.Status != unknown || got.Lookup || !got.MaybeApplied {
		t.Errorf("there is no lookup any more, and it goes on with %+v", got)
	}
}

const almostOne = 1 - 1.0/(1<<53)

func TestTheCeilingDoublesUpToTheCap(t *testing.T) {
	t.Parallel()
	backoff := dispatch.Backoff{Base: 500 * time.Millisecond, Cap: 10 * time.Second}
	ceilings := map[int]time.Duration{
		1: 500 * time.Millisecond, 2: time.Second, 3: 2 * time.Second, 4: 4 * time.Second,
		5: 8 * time.Second, 6: 10 * time.Second, 7: 10 * time.Second, 1e9: 10 * time.Second,
	}
	fault.Injected(t, 35, len(ceilings))
	for try, want := range ceilings {
		if got := backoff.Delay(try, 0, almostOne); got > want || got < want-time.Microsecond {
			t.Errorf("try %d: %s, want just under %s", try, got, want)
		}
		if got := backoff.Delay(try, 0, 0); got != 0 {
			t.Errorf("try %d without luck: %s, want 0", try, got)
		}
	}
}

// The doubling stops at the cap, also at the largest one. An overflow would make retries wait forever.
func TestTheFirstTriesWaitNoLongerUnderACapForEver(t *testing.T) {
	t.Parallel()
	backoff := dispatch.Backoff{Base: time.Second, Cap: math.MaxInt64}
	for try, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second} {
		if got := backoff.Delay(try, 0, almostOne); got > want || got < want-time.Microsecond {
			t.Errorf("try %d: %s, want just under %s", try, got, want)
		}
	}
}

func TestNoTryWaitsLongerThanTheCapNorLessThanNothing(t *testing.T) {
	t.Parallel()
	lengths := []time.Duration{1, time.Millisecond, time.Hour, math.MaxInt64/2 + 1, math.MaxInt64}
	for try := 1; try <= 1e9; try *= 10 {
		for _, try := range []int{try - 1, try, 3 * try, 6*try + 4} {
			for _, base := range lengths {
				for _, limit := range lengths {
					for _, fraction := range []float64{0, 0.5, almostOne} {
						if got := (dispatch.Backoff{Base: base, Cap: limit}).Delay(try, 0, fraction); got < 0 || got > limit {
							t.Errorf("try %d, base %s, cap %s, %v: %s", try, base, limit, fraction, got)
						}
					}
				}
			}
		}
	}
}

func TestAnEmptyBackoffDoesNotWaitOrSpin(t *testing.T) {
	t.Parallel()
	for _, backoff := range []dispatch.Backoff{{}, {Cap: time.Hour}, {Base: time.Second}} {
		if got := backoff.Delay(math.MaxInt, 0, almostOne); got != 0 {
			t.Errorf("%+v: %s, want 0", backoff, got)
		}
	}
}

func TestRetryAfterIsAFloor(t *testing.T) {
	t.Parallel()
	backoff := dispatch.Backoff{Base: time.Second, Cap: time.Minute}
	for _, test := range []struct {
		retryAfter time.Duration
		fraction   float64
		want       time.Duration
	}{
		{30 * time.Second, 0, 30 * time.Second},
		{30 * time.Second, 0.5, 30*time.Second + 500*time.Millisecond},
		{-time.Hour, 0.5, 500 * time.Millisecond},
		{math.MaxInt64, 0.5, math.MaxInt64},
	} {
		if got := backoff.Delay(1, test.retryAfter, test.fraction); got != test.want {
			t.Errorf("Retry-After %s: %s, want %s", test.retryAfter, got, test.want)
		}
	}
}

func TestDelayStaysBetweenRetryAfterAndItsCeiling(t *testing.T) {
	t.Parallel()
	delays := 0
	rapid.Check(t, func(t *rapid.T) {
		backoff := dispatch.Backoff{
			Base: time.Duration(rapid.Int64().Draw(t, "base")),
			Cap:  time.Duration(rapid.Int64().Draw(t, "cap")),
		}
		try := rapid.IntRange(1, 1e9).Draw(t, "try")
		retryAfter := time.Duration(rapid.Int64().Draw(t, "retryAfter"))
		fraction := rapid.Float64Range(0, almostOne).Draw(t, "fraction")

		floor := max(retryAfter, 0)
		got := backoff.Delay(try, retryAfter, fraction)
		if got < floor {
			t.Fatalf("%s is before the floor %s", got, floor)
		}
		if jitter := got - floor; jitter > max(backoff.Cap, 0) {
			t.Fatalf("jitter %s is over the cap %s", jitter, backoff.Cap)
		}
		if jitter := backoff.Delay(1, 0, fraction); jitter > max(backoff.Base, 0) {
			t.Fatalf("jitter %s of the first try is over the base %s", jitter, backoff.Base)
		}
		delays++
	})
	fault.Injected(t, 35, delays)
}

func TestDelayGrowsWithTheTry(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		backoff := dispatch.Backoff{
			Base: time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "base")),
			Cap:  time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "cap")),
		}
		try := rapid.IntRange(1, 100).Draw(t, "try")
		fraction := rapid.Float64Range(0, almostOne).Draw(t, "fraction")
		if earlier, later := backoff.Delay(try, 0, fraction), backoff.Delay(try+1, 0, fraction); earlier > later {
			t.Fatalf("try %d waits %s, the next only %s", try, earlier, later)
		}
	})
}

// walk is one intent on its way through attempts. It records the evidence by itself, apart from the policy's
// history.
type walk struct {
	policy  dispatch.Policy
	history dispatch.History
	doubt   bool // something may have been applied, and no lookup settled it
	lost    bool // an attempt that acted was ambiguous or lost
}

func TestNoWalkThroughAttemptsBreaksAPromise(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		for range 20 { // most are short
			w := &walk{policy: drawPolicy(t)}
			for w.step(t) {
			}
		}
	})
}

func drawPolicy(t *rapid.T) dispatch.Policy {
	p := policy(rapid.SampledFrom(dispatch.Classes()).Draw(t, "class"))
	p.MaxAttempts = rapid.IntRange(1, 10).Draw(t, "maxAttempts")
	p.Timeout = time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "timeout"))
	if rapid.Bool().Draw(t, "has a lookup") {
		p.Lookup = &dispatch.Lookup{Operation: "find", Margin: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "margin"))}
	}
	return p
}

// step takes one attempt and reports whether the row is requeued for another.
func (w *walk) step(t *rapid.T) bool {
	w.history.Tries++
	w.history.SinceStart = time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "took"))
	result := drawResult(t)
	w.witness(result.Outcome)
	decision := w.policy.Decide(w.history, result, rapid.Float64Range(0, almostOne).Draw(t, "fraction"))
	for promise, holds := range w.promises(result, decision) {
		if !holds {
			t.Fatalf("%s: %+v after %+v made %+v", promise, result, w.history, decision)
		}
	}
	w.history = dispatch.History{
		Tries: decision.Tries, MaybeApplied: decision.MaybeApplied, Lookup: decision.Lookup,
		SinceFirstSend: w.history.SinceFirstSend + min(decision.Delay, math.MaxInt64-w.history.SinceFirstSend),
	}
	return decision.Back()
}

func drawResult(t *rapid.T) dispatch.Result {
	return dispatch.Result{
		Outcome:    rapid.SampledFrom(dispatch.Outcomes()).Draw(t, "outcome"),
		Final:      rapid.IntRange(0, 9).Draw(t, "final") == 9,
		RetryAfter: time.Duration(rapid.IntRange(-1, 15).Draw(t, "retryAfter")) * time.Hour,
	}
}

func (w *walk) witness(outcome dispatch.Outcome) {
	switch {
	case w.history.Lookup:
		w.doubt = w.doubt && outcome != dispatch.Completed && outcome != dispatch.Absent
	case outcome == dispatch.Ambiguous, outcome == dispatch.Lost:
		w.doubt, w.lost = true, true
	case outcome == dispatch.InFlight:
		w.doubt = true
	}
}

func (w *walk) promises(result dispatch.Result, decision dispatch.Decision) map[string]bool {
	released := result.Outcome == dispatch.Released || result.Outcome.RefusesUs()
	actsAgain := decision.Status == pending
	spent := w.history.Tries
	if released {
		spent--
	}
	inTime := w.policy.Class != dispatch.KeyIdempotent || w.history.SinceFirstSend+decision.Delay < w.policy.KeyTTL/2
	return map[string]bool{
		"failed means that no doubt is left": decision.Status != failed || !w.doubt,
		"completed needs evidence":           decision.Status != completed || result.Outcome == dispatch.Completed,
		"unknown needs doubt":                decision.Status != unknown || w.doubt,
		"doubt goes with the row":            !decision.Back() || decision.MaybeApplied == w.doubt,
		"an attempt costs a try, one that was released or refused this side none": decision.Tries == spent,
		"the tries are bounded":                           !actsAgain || released || decision.Tries < w.policy.MaxAttempts,
		"what must not be repeated is not sent again":     !actsAgain || w.policy.Class != dispatch.NonIdempotent || !w.lost,
		"no retry in doubt once the key may be forgotten": !actsAgain || released || !w.doubt || inTime,
		"no retry after a final answer":                   !actsAgain || released || w.history.Lookup || !result.Final,
		"no retry before Retry-After":                     !actsAgain || (decision.Delay >= result.RetryAfter && decision.Delay >= 0),
		"only a provider that can be asked is asked":      !decision.Lookup || (w.policy.Lookup != nil && decision.Status == unknown),
		"a first lookup waits until all sends are over":   !decision.Lookup || w.history.Lookup || released || decision.Delay >= w.policy.Lookup.Margin,
	}
}

func TestOnlyTheProvidersOwnTroubleCountsTowardsItsBreaker(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		result             dispatch.Result
		overloaded, failed bool
	}{
		"it cannot be reached":             {dispatch.Result{Outcome: dispatch.NotSent}, true, true},
		"it does not answer":               {dispatch.Result{Outcome: dispatch.Ambiguous}, false, true},
		"it answers with an error":         {dispatch.Result{Outcome: dispatch.Ambiguous, HTTPStatus: 500}, false, true},
		"its answer cannot be read":        {dispatch.Result{Outcome: dispatch.Ambiguous, HTTPStatus: 200}, false, false},
		"it has no room":                   {dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 503}, true, true},
		"it is overloaded":                 {dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 529}, true, true},
		"it limits the caller":             {dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 429}, true, true},
		"it refuses for now":               {dispatch.Result{Outcome: dispatch.Throttled}, true, true},
		"it refuses this intent for now":   {dispatch.Result{Outcome: dispatch.Throttled, Healthy: true}, false, false},
		"it lacks what one tool needs":     {dispatch.Result{Outcome: dispatch.NotSent, OfOperation: true}, false, true},
		"it refuses one tool for now":      {dispatch.Result{Outcome: dispatch.Throttled, OfOperation: true}, false, true},
		"it answers without a status":      {dispatch.Result{Outcome: dispatch.Ambiguous, Healthy: true}, false, false},
		"it refuses":                       {dispatch.Result{Outcome: dispatch.Rejected}, false, false},
		"it is still at an earlier try":    {dispatch.Result{Outcome: dispatch.InFlight}, false, false},
		"it takes it":                      {dispatch.Result{Outcome: dispatch.Completed}, false, false},
		"it says that there is no such":    {dispatch.Result{Outcome: dispatch.Absent}, false, false},
		"it was not sent":                  {dispatch.Result{Outcome: dispatch.Released}, false, false},
		"it was refused here":              {dispatch.Result{Outcome: dispatch.NotSent, Unsent: true}, false, false},
		"its worker died":                  {dispatch.Result{Outcome: dispatch.Lost}, false, false},
		"out of reach, whatever it claims": {dispatch.Result{Outcome: dispatch.NotSent, Healthy: true}, true, true},
	} {
		if got := test.result.Failed(); got != test.failed {
			t.Errorf("%s: counts against its operation %v", name, got)
		}
		if got := test.result.Overloaded(); got != test.overloaded {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAnAdaptersNameIsTakenOnce(t *testing.T) {
	t.Parallel()
	registry, err := dispatch.NewRegistry(dispatch.Kind{Name: "smtp"}, dispatch.Kind{Name: "http"})
	if err != nil || !slices.Equal(registry.Names(), []string{"http", "smtp"}) {
		t.Errorf("%v, %v; want both, in alphabetical order", registry.Names(), err)
	}
	if _, err := dispatch.NewRegistry(dispatch.Kind{Name: "http"}, dispatch.Kind{Name: "http"}); err == nil {
		t.Error("two adapters have one name")
	}
}

func TestAToolsErrorNamesTheToolAndKeepsItsCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("path is missing")
	var err error = &dispatch.ToolError{Operation: "charge", Err: cause}
	if !errors.Is(err, cause) || err.Error() != "tool charge: path is missing" {
		t.Errorf("%q, of its cause: %v", err, errors.Is(err, cause))
	}
}
