package drainer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

var (
	healthy    = dispatch.Result{Outcome: dispatch.Completed, HTTPStatus: 200}
	overloaded = dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 529}
)

func threeStrikes() *breaker {
	return newBreaker(dispatch.Provider{Name: "sim", Breaker: dispatch.BreakerPolicy{ConsecutiveFailures: 3, CoolDown: 10 * time.Second}})
}

func TestABreakerOpensAfterOverloadsInARow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		saw  []dispatch.Result
		want bool
	}{
		{"three of them", []dispatch.Result{overloaded, overloaded, overloaded}, true},
		{"two of them", []dispatch.Result{overloaded, overloaded}, false},
		{"an answer between", []dispatch.Result{overloaded, overloaded, healthy, overloaded}, false},
		{"a rejection is an answer", []dispatch.Result{overloaded, overloaded, {Outcome: dispatch.Rejected, HTTPStatus: 422}, overloaded}, false},
		{"a 500 is an answer", []dispatch.Result{overloaded, overloaded, {Outcome: dispatch.Ambiguous, HTTPStatus: 500}, overloaded}, false},
		{"429 is the caller's own limit", []dispatch.Result{overloaded, overloaded, {Outcome: dispatch.Throttled, HTTPStatus: 429}}, false},
		{"out of reach", []dispatch.Result{{Outcome: dispatch.NotSent}, {Outcome: dispatch.NotSent}, {Outcome: dispatch.NotSent}}, true},
		{"no answers", []dispatch.Result{{Outcome: dispatch.Ambiguous}, {Outcome: dispatch.NotSent}, {Outcome: dispatch.Throttled, HTTPStatus: 503}}, true},
		{"what this side refused is no answer", []dispatch.Result{overloaded, overloaded, {Outcome: dispatch.Rejected, Unsent: true}, overloaded}, true},
		{"payloads that take too long here", []dispatch.Result{{Outcome: dispatch.NotSent, Unsent: true}, {Outcome: dispatch.Throttled, Unsent: true}, {Outcome: dispatch.NotSent, Unsent: true}}, false},
	} {
		b := threeStrikes()
		var change *BreakerChange
		for _, result := range test.saw {
			change = b.saw(result, false)
		}
		if opened := change != nil && change.Open; opened != test.want {
			t.Errorf("%s: opened %v, want %v", test.name, opened, test.want)
		}
		if shut := b.passage() == passNothing; shut != test.want {
			t.Errorf("%s: this process's own gate is shut %v, want %v", test.name, shut, test.want)
		}
	}
}

func TestABreakerStaysOpenAsLongAsTheProviderAsks(t *testing.T) {
	t.Parallel()
	b := threeStrikes()
	b.saw(overloaded, false)
	b.saw(overloaded, false)
	change := b.saw(dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 503, RetryAfter: time.Minute}, false)
	if change == nil || change.For != time.Minute {
		t.Errorf("%+v, want the Retry-After of a minute, longer than the cool-down", change)
	}
}

func TestAGateFollowsTheFleet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := threeStrikes()
		for _, step := range []struct {
			gate Gate
			wait time.Duration
			want passage
		}{
			{Gate{Breaker: BreakerClosed}, 0, passRows},
			{Gate{Breaker: BreakerOpen, OpenFor: time.Second}, 0, passNothing},
			{Gate{Breaker: BreakerOpen, OpenFor: time.Second}, time.Second, passProbe},
			{Gate{Breaker: BreakerHalfOpen, OpenFor: time.Second}, 0, passNothing},
			{Gate{Breaker: BreakerHalfOpen, OpenFor: time.Second}, time.Second, passProbe},
			{Gate{Breaker: BreakerClosed, Paused: true}, 0, passPaused},
			{Gate{Breaker: BreakerOpen, Paused: true}, 0, passPaused},
			{Gate{Breaker: BreakerClosed}, 0, passRows},
		} {
			b.learn(step.gate)
			time.Sleep(step.wait)
			if got := b.passage(); got != step.want {
				t.Errorf("%+v after %s: passage %d, want %d", step.gate, step.wait, got, step.want)
			}
		}
	})
}

func TestAnOlderWordOfTheFleetDoesNotReopenWhatWasJustShut(t *testing.T) {
	t.Parallel()
	b := threeStrikes()
	for range 3 {
		b.saw(overloaded, false)
	}
	b.learn(Gate{Breaker: BreakerClosed})
	if b.passage() != passNothing {
		t.Error("the gate is open again before the change could be committed")
	}
}

func TestOneAnswerDoesNotShutAProviderOffForAYear(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := threeStrikes()
		var change *BreakerChange
		for range 3 {
			change = b.saw(dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 503, RetryAfter: 365 * 24 * time.Hour}, false)
		}
		if change.For != time.Hour {
			t.Errorf("open for %s", change.For)
		}
		time.Sleep(knownWithin)
		b.learn(Gate{Breaker: BreakerClosed})
		if b.passage() != passRows {
			t.Error("this worker stays away although the fleet knows better")
		}
	})
}

func TestMaxWaitBoundsACoolDownToo(t *testing.T) {
	t.Parallel()
	answer := dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 503, RetryAfter: 50 * time.Minute}
	l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { return answer }))
	act := l.server.provider.Tools["act"]
	act.MaxWait = 5 * time.Minute
	l.server.provider.Tools["act"] = act
	var settlement Settlement
	for range 3 {
		row := &Row{Tries: 1, ClaimedAt: time.Now(), Tuple: dispatch.Tuple{ToolName: "sim/act"}}
		settlement = l.pool.attempt(lifetimes{stop: t.Context(), abort: t.Context()}, row)
	}
	if change := settlement.Breaker; change == nil || !change.Open || change.For != 5*time.Minute {
		t.Errorf("the breaker changes by %+v, want it open for 5 minutes", change)
	}
	if settlement.Result.RetryAfter != 50*time.Minute {
		t.Errorf("the history has %s, want what the provider asked for", settlement.Result.RetryAfter)
	}
}

func TestOnlyTheProbePassesAShutGate(t *testing.T) {
	t.Parallel()
	b := threeStrikes()
	b.learn(Gate{Breaker: BreakerHalfOpen, OpenFor: time.Minute})
	if b.passes(&Row{}) || !b.passes(&Row{Probe: true}) {
		t.Error("want the probe to pass, and nothing else")
	}
	b.learn(Gate{Breaker: BreakerHalfOpen, OpenFor: time.Minute, Paused: true})
	if b.passes(&Row{Probe: true}) {
		t.Error("a probe passed a paused provider")
	}
}

func TestAProbeAlwaysEndsInAVerdict(t *testing.T) {
	t.Parallel()
	b := threeStrikes()
	for name, test := range map[string]struct {
		change *BreakerChange
		open   bool
		wait   time.Duration
	}{
		"an answer":    {b.saw(healthy, true), false, 10 * time.Second},
		"overload":     {b.saw(overloaded, true), true, 10 * time.Second},
		"never sent":   {b.unproven(&Row{Probe: true}), true, 0},
		"refused here": {b.saw(dispatch.Result{Outcome: dispatch.Rejected, Unsent: true}, true), true, 0},
	} {
		if test.change == nil || test.change.Open != test.open || (test.open && test.change.For != test.wait) {
			t.Errorf("%s: %+v", name, test.change)
		}
	}
}
