package dispatch_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
)

// walk is one intent on its way through attempts, with a memory of its own of
// what the evidence was.
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
