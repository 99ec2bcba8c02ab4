package drainer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

var (
	healthy    = dispatch.Result{Outcome: dispatch.Completed, HTTPStatus: 200}
	overloaded = dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 529}
)

// threeStrikes is a provider whose breaker opens after three consecutive overloads.
func threeStrikes() *upstream {
	return newUpstream(dispatch.Provider{
		Name: "sim", Breaker: dispatch.BreakerPolicy{ConsecutiveFailures: 3, CoolDown: 10 * time.Second},
		Tools: map[string]dispatch.Policy{"act": {}},
	})
}

func TestABreakerOpensAfterOverloadsInARow(t *testing.T) {
	t.Parallel()
	timeout := dispatch.Result{Outcome: dispatch.Ambiguous}
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
		{"a timeout is none", []dispatch.Result{overloaded, overloaded, timeout, overloaded}, true},
		{"a 500 alone speaks for its operation", []dispatch.Result{{Outcome: dispatch.Ambiguous, HTTPStatus: 500}, {Outcome: dispatch.Ambiguous, HTTPStatus: 500}, {Outcome: dispatch.Ambiguous, HTTPStatus: 500}}, false},
		{"one slow intent and its retries", []dispatch.Result{timeout, timeout, timeout, timeout}, false},
		{"429, 503 and 529", []dispatch.Result{{Outcome: dispatch.Throttled, HTTPStatus: 429}, {Outcome: dispatch.Throttled, HTTPStatus: 503}, overloaded}, true},
		{"a busy key of the provider's", []dispatch.Result{overloaded, overloaded, {Outcome: dispatch.Throttled, HTTPStatus: 409}}, false},
		{"out of reach", []dispatch.Result{{Outcome: dispatch.NotSent}, {Outcome: dispatch.NotSent}, {Outcome: dispatch.NotSent}}, true},
		{"what this side refused is no answer", []dispatch.Result{overloaded, overloaded, {Outcome: dispatch.Rejected, Unsent: true}, overloaded}, true},
		{"payloads that take too long here", []dispatch.Result{{Outcome: dispatch.NotSent, Unsent: true}, {Outcome: dispatch.Throttled, Unsent: true}, {Outcome: dispatch.NotSent, Unsent: true}}, false},
	} {
		u := threeStrikes()
		var changes []BreakerChange
		for _, result := range test.saw {
			changes = u.record(&Row{}, "act", result)
		}
		want := "[]"
		if test.want {
			want = "[{Gate:sim Open:true Reason:overload For:10s Probe:false}]"
		}
		if got := fmt.Sprintf("%+v", changes); got != want {
			t.Errorf("%s: %s, want %s", test.name, got, want)
		}
		if shut := u.breaker.passage() == passNothing; shut != test.want {
			t.Errorf("%s: this process's own gate is shut %v, want %v", test.name, shut, test.want)
		}
	}
}

func TestABreakerStaysOpenAsLongAsTheProviderAsks(t *testing.T) {
	t.Parallel()
	u := threeStrikes()
	u.record(&Row{}, "act", overloaded)
	u.record(&Row{}, "act", overloaded)
	changes := u.record(&Row{}, "act", dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 503, RetryAfter: time.Minute})
	if len(changes) != 1 || changes[0].For != time.Minute {
		t.Errorf("%+v, want the Retry-After of a minute, longer than the cool-down", changes)
	}
}

// shop has three tools. A breaker opens if half of the intents of a minute fail, and there are at least four of them.
func shop() *upstream {
	return newUpstream(dispatch.Provider{
		Name: "shop", Breaker: dispatch.BreakerPolicy{FailureRate: 0.5, Window: time.Minute, MinimumIntents: 4, CoolDown: 10 * time.Second},
		Tools: map[string]dispatch.Policy{"charge": {}, "refund": {}, "ship": {}},
	})
}

// attempt is a step of a story: the result of an intent's attempt, and the time since the attempt before it.
type attempt struct {
	intent int64
	tool   string
	result dispatch.Result
	after  time.Duration
}

func TestAnOperationIsShutWhenMostOfItsIntentsFail(t *testing.T) {
	t.Parallel()
	var (
		timeout  = dispatch.Result{Outcome: dispatch.Ambiguous}
		broken   = dispatch.Result{Outcome: dispatch.Ambiguous, HTTPStatus: 500}
		rejected = dispatch.Result{Outcome: dispatch.Rejected, HTTPStatus: 422}
	)
	of := func(tool string, results ...dispatch.Result) (story []attempt) {
		for i, result := range results {
			story = append(story, attempt{int64(i), tool, result, 0})
		}
		return story
	}
	retried := func(intent int64, tool string, times int) (story []attempt) {
		for range times {
			story = append(story, attempt{intent, tool, timeout, time.Second})
		}
		return story
	}
	later := func(story []attempt, after time.Duration) []attempt {
		story[0].after = after
		return story
	}
	for name, test := range map[string]struct {
		story []attempt
		want  string // the gates that are shut
	}{
		"all of them":                      {of("charge", timeout, broken, timeout, broken), "shop/charge"},
		"half of them":                     {of("charge", healthy, healthy, timeout, timeout), "shop/charge"},
		"less than half":                   {of("charge", healthy, healthy, healthy, timeout, timeout), ""},
		"too few to tell":                  {of("charge", timeout, timeout, timeout), ""},
		"one slow intent and its retries":  {retried(1, "charge", 40), ""},
		"one slow intent among others":     {slices.Concat(retried(9, "charge", 8), of("charge", healthy, healthy, healthy), retried(9, "charge", 8)), ""},
		"they have their effect at last":   {slices.Concat(of("charge", timeout, timeout, timeout), of("charge", healthy, healthy, healthy), retried(9, "charge", 1)), ""},
		"a rejection is an answer":         {of("charge", timeout, rejected, rejected, rejected), ""},
		"failures of another tool":         {slices.Concat(of("charge", timeout, timeout, timeout), of("refund", timeout, timeout, timeout)), ""},
		"long ago":                         {slices.Concat(of("charge", timeout, timeout, timeout), later(of("charge", timeout), time.Minute+1)), ""},
		"one tool, and its neighbour well": {slices.Concat(of("refund", healthy, healthy, healthy, healthy), of("charge", timeout, timeout, timeout, timeout)), "shop/charge"},
		"most tools that are in use": {
			slices.Concat(of("refund", timeout, timeout, timeout, timeout), of("charge", timeout, timeout, timeout, timeout)), "shop/refund shop",
		},
		"two of three": {
			slices.Concat(of("ship", healthy), of("refund", timeout, timeout, timeout, timeout), of("charge", timeout, timeout, timeout, timeout)), "shop/refund shop",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				u := shop()
				var shut []string
				for _, step := range test.story {
					time.Sleep(step.after)
					for _, change := range u.record(&Row{IntentID: step.intent}, step.tool, step.result) {
						if change.Reason != FailureRate || !change.Open || change.For != 10*time.Second {
							t.Errorf("%+v", change)
						}
						shut = append(shut, change.Gate)
					}
				}
				if got := strings.Join(shut, " "); got != test.want {
					t.Errorf("shut is %q, want %q", got, test.want)
				}
			})
		})
	}
}

func TestASingleOperationSpeaksForItsProvider(t *testing.T) {
	t.Parallel()
	u := newUpstream(dispatch.Provider{
		Name: "shop", Breaker: dispatch.BreakerPolicy{FailureRate: 0.5, Window: time.Minute, MinimumIntents: 2, CoolDown: time.Second},
		Tools: map[string]dispatch.Policy{"charge": {}},
	})
	u.record(&Row{IntentID: 1}, "charge", dispatch.Result{Outcome: dispatch.Ambiguous})
	changes := u.record(&Row{IntentID: 2}, "charge", dispatch.Result{Outcome: dispatch.Ambiguous})
	if len(changes) != 1 || changes[0].Gate != "shop" {
		t.Errorf("%+v, want the provider shut: its fallback may serve", changes)
	}
}

// A queue, a topic or a tool may be missing. A provider refuses only that operation then.
func TestARefusalOfOneOperationShutsThatAlone(t *testing.T) {
	t.Parallel()
	missing := dispatch.Result{Outcome: dispatch.NotSent, OfOperation: true}
	policy := dispatch.BreakerPolicy{FailureRate: 0.5, Window: time.Minute, MinimumIntents: 10, ConsecutiveFailures: 3, CoolDown: 10 * time.Second}
	provider := func(operations ...string) *upstream {
		tools := map[string]dispatch.Policy{}
		for _, operation := range operations {
			tools[operation] = dispatch.Policy{}
		}
		return newUpstream(dispatch.Provider{Name: "shop", Breaker: policy, Tools: tools})
	}
	for name, test := range map[string]struct {
		upstream  *upstream
		operation string // the last three attempts are refusals of it
		before    []attempt
		want      string
	}{
		"one intent, tried again": {provider("charge", "refund"), "charge", nil, "[{Gate:shop/charge Open:true Reason:failure_rate For:10s Probe:false}]"},
		"every operation":         {provider("charge", "refund"), "charge", []attempt{{0, "refund", missing, 0}, {0, "refund", missing, 0}, {0, "refund", missing, 0}}, "[{Gate:shop Open:true Reason:failure_rate For:10s Probe:false}]"},
		"most, and one is well":   {provider("charge", "refund", "look"), "charge", []attempt{{9, "look", healthy, 0}, {0, "refund", missing, 0}, {0, "refund", missing, 0}, {0, "refund", missing, 0}}, "[{Gate:shop/charge Open:true Reason:failure_rate For:10s Probe:false}]"},
		"between answers":         {provider("charge", "refund"), "charge", []attempt{{0, "charge", missing, 0}, {0, "charge", healthy, 0}}, "[{Gate:shop/charge Open:true Reason:failure_rate For:10s Probe:false}]"},
		"it is an answer":         {provider("charge", "refund"), "charge", []attempt{{0, "refund", overloaded, 0}, {0, "refund", overloaded, 0}}, "[{Gate:shop/charge Open:true Reason:failure_rate For:10s Probe:false}]"},
		"the provider's only one": {provider("charge"), "charge", nil, "[{Gate:shop Open:true Reason:overload For:10s Probe:false}]"},
	} {
		for _, step := range test.before {
			test.upstream.record(&Row{IntentID: step.intent}, step.tool, step.result)
		}
		var changes []BreakerChange
		for i := range 3 {
			if len(changes) > 0 {
				t.Errorf("%s: after %d refusals %+v", name, i, changes)
			}
			changes = test.upstream.record(&Row{IntentID: 1}, test.operation, missing)
		}
		if got := fmt.Sprintf("%+v", changes); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}

	u := provider("charge", "refund")
	for gate, want := range map[string]string{
		"shop":        "[{Gate:shop Open:false Reason: For:10s Probe:true}]",
		"shop/charge": "[{Gate:shop/charge Open:true Reason:failure_rate For:10s Probe:true}]",
	} {
		if got := fmt.Sprintf("%+v", u.record(&Row{Probe: gate}, "charge", missing)); got != want {
			t.Errorf("a probe of %s: %s, want %s", gate, got, want)
		}
	}
	u.breaker.applyGate(Gate{Name: "shop", Breaker: BreakerHalfOpen, Reason: FailureRate, OpenFor: time.Minute})
	if got, want := fmt.Sprintf("%+v", u.record(&Row{Probe: "shop"}, "charge", missing)), "[{Gate:shop Open:true Reason:failure_rate For:10s Probe:true}]"; got != want {
		t.Errorf("a probe of a provider whose operations are all shut: %s, want %s", got, want)
	}
}

func TestAWindowIsBounded(t *testing.T) {
	t.Parallel()
	w := window{policy: dispatch.BreakerPolicy{FailureRate: 1, Window: time.Hour, MinimumIntents: 1}}
	now := time.Now()
	for intent := range int64(10 * mostSamples) {
		w.add(now, intent, false)
	}
	if len(w.samples) > mostSamples || len(w.newest) > mostSamples {
		t.Errorf("%d samples of %d intents", len(w.samples), len(w.newest))
	}
	for range 10 * mostSamples {
		w.add(now, -1, true)
	}
	if len(w.samples) > mostSamples || len(w.newest) > 1 || w.failures > 1 {
		t.Errorf("%d samples of %d intents after many tries of one, %d of them failures", len(w.samples), len(w.newest), w.failures)
	}
}

func TestAShutOperationKeepsItsRowsBackAndNoOthers(t *testing.T) {
	t.Parallel()
	u := shop()
	u.applyOperationGates(map[string]Gate{"shop/charge": {Name: "shop/charge", Breaker: BreakerHalfOpen, OpenFor: time.Minute}})
	for name, test := range map[string]struct {
		row       *Row
		operation string
		shut      bool
	}{
		"a row of it":              {&Row{}, "charge", true},
		"a neighbour's":            {&Row{}, "refund", false},
		"what tries it":            {&Row{Probe: "shop/charge"}, "charge", false},
		"what tries another":       {&Row{Probe: "shop/refund"}, "charge", true},
		"what tries the provider":  {&Row{Probe: "shop"}, "charge", false},
		"a tool that nobody knows": {&Row{}, "typo", false},
	} {
		if got := u.shut(test.row, test.operation) != nil; got != test.shut {
			t.Errorf("%s: kept back %v, want %v", name, got, test.shut)
		}
	}
	u.applyOperationGates(nil)
	if u.shut(&Row{}, "charge") != nil {
		t.Error("the fleet opened it again, and this worker keeps its rows back")
	}
}

func TestAGateFollowsTheFleet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := threeStrikes().breaker
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
			b.applyGate(step.gate)
			time.Sleep(step.wait)
			if got := b.passage(); got != step.want {
				t.Errorf("%+v after %s: passage %d, want %d", step.gate, step.wait, got, step.want)
			}
		}
	})
}

func TestAnOlderWordOfTheFleetDoesNotReopenWhatWasJustShut(t *testing.T) {
	t.Parallel()
	u := threeStrikes()
	for range 3 {
		u.record(&Row{}, "act", overloaded)
	}
	u.breaker.applyGate(Gate{Breaker: BreakerClosed})
	if u.breaker.passage() != passNothing {
		t.Error("the gate is open again before the change could be committed")
	}
}

func TestAnOperationThatAClaimedRowTriedIsOpenAsSoonAsTheFleetHasClosedIt(t *testing.T) {
	t.Parallel()
	b := threeStrikes().operations["act"].breaker
	b.applyGate(Gate{Breaker: BreakerOpen})
	if !b.takeTurn() || b.takeTurn() {
		t.Error("want one row to try it")
	}
	b.applyGate(Gate{Breaker: BreakerHalfOpen, OpenFor: time.Minute})
	if wait := b.remaining(); wait > knownWithin {
		t.Errorf("rows stay away for %s although the row that tries may succeed at any moment", wait)
	}
	b.applyGate(Gate{Breaker: BreakerClosed})
	if b.passage() != passRows {
		t.Error("this worker stays away although the fleet knows better")
	}
}

func TestAnOperationThatWasShutHereSinceItsProbeStaysShut(t *testing.T) {
	t.Parallel()
	b := threeStrikes().operations["act"].breaker
	b.applyGate(Gate{Breaker: BreakerHalfOpen, OpenFor: time.Minute})
	b.open(Forbidden, time.Minute)
	b.applyGate(Gate{Breaker: BreakerClosed})
	if b.passage() != passNothing {
		t.Error("the gate is open again before the change could be committed")
	}
}

func TestOneAnswerDoesNotShutAProviderOffForAYear(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := threeStrikes()
		var changes []BreakerChange
		for range 3 {
			changes = u.record(&Row{}, "act", dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 503, RetryAfter: 365 * 24 * time.Hour})
		}
		if changes[0].For != time.Hour {
			t.Errorf("open for %s", changes[0].For)
		}
		time.Sleep(knownWithin)
		u.breaker.applyGate(Gate{Breaker: BreakerClosed})
		if u.breaker.passage() != passRows {
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
	if changes := settlement.Breakers; len(changes) != 1 || !changes[0].Open || changes[0].For != 5*time.Minute {
		t.Errorf("the breaker changes by %+v, want it open for 5 minutes", changes)
	}
	if settlement.Result.RetryAfter != 50*time.Minute {
		t.Errorf("the history has %s, want what the provider asked for", settlement.Result.RetryAfter)
	}
}

func TestOnlyTheProbePassesAShutGate(t *testing.T) {
	t.Parallel()
	b := threeStrikes().breaker
	b.applyGate(Gate{Breaker: BreakerHalfOpen, OpenFor: time.Minute})
	if b.admits(&Row{}) || b.admits(&Row{Probe: "sim/act"}) || !b.admits(&Row{Probe: "sim"}) {
		t.Error("want its probe to pass, and nothing else")
	}
	b.applyGate(Gate{Breaker: BreakerHalfOpen, OpenFor: time.Minute, Paused: true})
	if b.admits(&Row{Probe: "sim"}) {
		t.Error("a probe passed a paused provider")
	}
}

func TestAProbeAlwaysEndsInAVerdict(t *testing.T) {
	t.Parallel()
	broken := dispatch.Result{Outcome: dispatch.Ambiguous, HTTPStatus: 500}
	for _, test := range []struct {
		name, gate string
		result     dispatch.Result
		open       bool
		wait       time.Duration
	}{
		{"an answer", "sim", healthy, false, 0},
		{"an answer to an operation", "sim/act", healthy, false, 0},
		{"overload", "sim", overloaded, true, 10 * time.Second},
		{"overload of an operation", "sim/act", overloaded, true, 10 * time.Second},
		{"no answer", "sim", dispatch.Result{Outcome: dispatch.Ambiguous}, true, 10 * time.Second},
		{"a 500 shows that the provider lives", "sim", broken, false, 0},
		{"a 500 is what an operation is shut for", "sim/act", broken, true, 10 * time.Second},
		{"refused here", "sim", dispatch.Result{Outcome: dispatch.Rejected, Unsent: true}, true, 0},
		{"an operation's, refused here", "sim/act", dispatch.Result{Outcome: dispatch.Rejected, Unsent: true}, true, 0},
	} {
		changes := threeStrikes().record(&Row{Probe: test.gate}, "act", test.result)
		if len(changes) != 1 || changes[0].Gate != test.gate || !changes[0].Probe || changes[0].Open != test.open || (test.open && changes[0].For != test.wait) {
			t.Errorf("%s: %+v", test.name, changes)
		}
	}
	if changes := threeStrikes().unproven(&Row{Probe: "sim"}); len(changes) != 1 || !changes[0].Open || changes[0].For != 0 {
		t.Errorf("never sent: %+v", changes)
	}
}

// If a gate is shut for a failure rate, the next probe is the row that failed least.
func TestAProbeThatMeetsAnOutageUsesNoTryUnlessTheSameRowWouldTryEachTime(t *testing.T) {
	t.Parallel()
	missing := dispatch.Result{Outcome: dispatch.NotSent, OfOperation: true}
	for _, test := range []struct {
		name, gate string
		reason     OpenReason
		result     dispatch.Result
		tries      int
		want       int
	}{
		{"an overload", "sim", Overloaded, overloaded, 1, 0},
		{"a missing queue", "sim/act", FailureRate, missing, 1, 1},
		{"a missing queue, at the last try", "sim/act", FailureRate, missing, 3, 2},
		{"a 503 of an operation", "sim/act", FailureRate, overloaded, 2, 2},
		{"a 503 of an operation, at the last try", "sim/act", FailureRate, overloaded, 3, 2},
		{"operations that all fail", "sim", FailureRate, overloaded, 2, 2},
		{"what was forbidden before", "sim/act", Forbidden, missing, 2, 1},
	} {
		l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { return test.result }))
		shut := Gate{Name: test.gate, Breaker: BreakerHalfOpen, Reason: test.reason}
		l.pool.upstreams["sim"].applyOperationGates(map[string]Gate{test.gate: shut})
		if test.gate == "sim" {
			l.pool.upstreams["sim"].applyGate(shut)
		}
		row := &Row{Tries: test.tries, Probe: test.gate, ClaimedAt: time.Now(), Tuple: dispatch.Tuple{ToolName: "sim/act"}}
		got := l.pool.attempt(lifetimes{stop: t.Context(), abort: t.Context()}, row)
		if got.Decision.Status != dispatch.StatusPending || got.Decision.Tries != test.want {
			t.Errorf("%s: %s after %d tries, want it to wait after %d", test.name, got.Decision.Status, got.Decision.Tries, test.want)
		}
	}
}
