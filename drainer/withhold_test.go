package drainer

import (
	"context"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// dispatchFunc is an adapter in a few lines.
type dispatchFunc func(context.Context) dispatch.Result

func (f dispatchFunc) Dispatch(ctx context.Context, _ dispatch.Request) dispatch.Result {
	return f(ctx)
}

// laneTo is a lane of the provider "sim", whose tool "act" takes keys.
func laneTo(adapter dispatch.Adapter) *lane {
	sim := Provider{
		Name: "sim", Adapter: adapter, Concurrency: 1, Timeout: time.Second,
		Breaker: dispatch.BreakerPolicy{ConsecutiveFailures: 3, CoolDown: time.Minute},
		Tools:   map[string]dispatch.Policy{"act": {Class: dispatch.KeyIdempotent, KeyTTL: time.Minute, MaxAttempts: 3}},
	}
	return laneOn(route{"sim", "sim"}, sim)
}

func laneOn(way route, server Provider) *lane {
	observer, _ := observing(server)
	return newLane(way, &session{
		upstreams: map[string]*upstream{way.provider: newUpstream(server), way.server: newUpstream(server)},
		closings:  &closings{},
		lease:     newLease(beatFunc(nil), "worker", timing, time.Now()),
		observer:  observer,
		log:       observer.log,
	})
}

func TestARowThatMustNotBeSentNowIsGivenBackUnsentAndUncounted(t *testing.T) {
	t.Parallel()
	fleet := func(gate Gate) func(*lane, *Row) {
		return func(l *lane, _ *Row) {
			gate.Provider, gate.Workers = "sim", 1
			l.server.learn(gate)
		}
	}
	longAgo := time.Now().Add(-time.Hour)
	for name, test := range map[string]struct {
		given func(*lane, *Row)
		class string
		delay time.Duration
	}{
		"no provider of its name": {func(_ *lane, row *Row) { row.Tuple.ToolName = "another/act" }, "unconfigured_tool", time.Minute},
		"no tool of its name":     {func(_ *lane, row *Row) { row.Tuple.ToolName = "sim/other" }, "unconfigured_tool", time.Minute},
		"no fallback of its name": {func(_ *lane, row *Row) { row.Via = "another" }, "unconfigured_tool", time.Minute},
		"nobody can look it up": {func(_ *lane, row *Row) {
			row.Lookup, row.MaybeApplied, row.FirstAttemptAt, row.SinceFirstSend = true, true, &longAgo, 2*time.Minute
		}, "lookup_unconfigured", time.Minute},
		"no share of the limit":      {func(l *lane, _ *Row) { l.server.slots.resize(0) }, "no_share", fleetInterval},
		"the lease may be over":      {func(l *lane, _ *Row) { l.lease.renew(longAgo) }, "", 0},
		"the provider is paused":     {fleet(Gate{Breaker: BreakerClosed, Paused: true}), "provider_paused", fleetInterval},
		"the provider is overloaded": {fleet(Gate{Breaker: BreakerOpen, OpenFor: time.Minute}), "circuit_open", fleetInterval},
		"its run was closed":         {func(l *lane, row *Row) { l.closings.learn([]string{row.Tuple.AgentRunID}) }, "run_closed", 0},
		"another run goes back":      {func(l *lane, _ *Row) { l.closings.learn([]string{"another"}) }, "sent", 0},
		"it may be the probe": {func(l *lane, row *Row) {
			fleet(Gate{Breaker: BreakerOpen, OpenFor: time.Minute})(l, row)
			row.Probe = true
		}, "sent", 0},
		"nothing holds it back at all": {func(*lane, *Row) {}, "sent", 0},
	} {
		sent := false
		l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { sent = true; return healthy }))
		row := &Row{Tries: 2, ClaimedAt: time.Now(), Tuple: dispatch.Tuple{AgentRunID: "run", ToolName: "sim/act"}}
		test.given(l, row)
		got := l.attempt(lifetimes{stop: t.Context(), abort: t.Context()}, row)
		if want := test.class == "sent"; sent != want {
			t.Errorf("%s: it was sent %v, want %v", name, sent, want)
		}
		if sent {
			continue
		}
		if got.Result.Outcome != dispatch.Released || got.Result.ErrorClass != test.class || got.Decision.Delay != test.delay || got.Decision.Tries != 1 {
			t.Errorf("%s: %s %q after %d tries, due again in %s; want it released as %q after 1, due in %s", name,
				got.Result.Outcome, got.Result.ErrorClass, got.Decision.Tries, got.Decision.Delay, test.class, test.delay)
		}
		if l.server.slots.inUse() != 0 {
			t.Errorf("%s: it keeps its slot", name)
		}
	}
}

func TestAStepOfARunThatGoesBackIsNotSentButEnded(t *testing.T) {
	t.Parallel()
	for inDoubt, want := range map[bool]dispatch.Status{false: dispatch.StatusFailed, true: dispatch.StatusUnknown} {
		l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { t.Error("it was sent"); return healthy }))
		row := &Row{Tries: 2, MaybeApplied: inDoubt, Closed: true, ClaimedAt: time.Now(), Tuple: dispatch.Tuple{ToolName: "sim/act"}}
		got := l.attempt(lifetimes{stop: t.Context(), abort: t.Context()}, row)
		if got.Result.ErrorClass != "run_compensating" || got.Decision.Status != want {
			t.Errorf("in doubt %v: %q, %s; want it %s", inDoubt, got.Result.ErrorClass, got.Decision.Status, want)
		}
	}
}

func TestNothingIsSentOnceTheWorkerStops(t *testing.T) {
	t.Parallel()
	over, end := context.WithCancel(t.Context())
	end()
	for name, life := range map[string]lifetimes{
		"it claims nothing more":    {stop: over, abort: t.Context()},
		"what is in flight was cut": {stop: t.Context(), abort: over},
	} {
		l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { t.Errorf("%s: and sends", name); return healthy }))
		got := l.attempt(life, &Row{Tuple: dispatch.Tuple{ToolName: "sim/act"}})
		if got.Result.Outcome != dispatch.Released || got.Decision.Delay != 0 {
			t.Errorf("%s: %+v, want it given back at once", name, got.Decision)
		}
	}
}

// What was cut off before it was sent was no attempt; what may have been sent was.
func TestBeingCutOffCostsATryOnlyOnceSomethingMayHaveBeenSent(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cut     bool
		saw     dispatch.Outcome
		outcome dispatch.Outcome
		tries   int
	}{
		{true, dispatch.NotSent, dispatch.Released, 1},
		{true, dispatch.Ambiguous, dispatch.Ambiguous, 2},
		{false, dispatch.NotSent, dispatch.NotSent, 2},
	} {
		abort, cut := context.WithCancel(t.Context())
		defer cut()
		l := laneTo(dispatchFunc(func(context.Context) dispatch.Result {
			if test.cut {
				cut()
			}
			return dispatch.Result{Outcome: test.saw}
		}))
		row := &Row{Tries: 2, ClaimedAt: time.Now(), Tuple: dispatch.Tuple{ToolName: "sim/act"}}
		got := l.attempt(lifetimes{stop: t.Context(), abort: abort}, row)
		if got.Result.Outcome != test.outcome || got.Decision.Tries != test.tries {
			t.Errorf("%s, cut off %v: %s after %d tries, want %s after %d", test.saw, test.cut, got.Result.Outcome, got.Decision.Tries, test.outcome, test.tries)
		}
	}
}

// A probe passes the shut gate; what a stop gives back includes it.
func TestAShutGateGivesBackAllThatWaitsButTheProbe(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		class string
		stays int
	}{
		"a shut gate": {"provider_shut", 1},
		"a stop":      {"", 0},
	} {
		l := laneTo(nil)
		for n := range int64(3) {
			l.dispatchers.jobs <- &Row{IntentID: n, Probe: n == 1, Tuple: dispatch.Tuple{ToolName: "sim/act"}}
		}
		l.outstanding = 3
		l.giveBack(0, test.class)
		if len(l.dispatchers.jobs) != test.stays || l.outstanding != test.stays || len(l.settled) != 3-test.stays {
			t.Errorf("%s: %d stay, %d are outstanding and %d are given back", name, len(l.dispatchers.jobs), l.outstanding, len(l.settled))
		}
		if test.stays == 1 && !(<-l.dispatchers.jobs).Probe {
			t.Errorf("%s: another than the probe stays", name)
		}
	}
}

func TestALaneWithoutAShareHasNoRoomToPrefetch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ slots, prefetch, outstanding, want int }{
		{4, 0, 0, 4},
		{4, 10, 3, 11},
		{4, 0, 5, 0},
		{0, 10, 0, 0},
	} {
		l := laneTo(nil)
		l.server.slots.resize(test.slots)
		l.prefetch, l.outstanding = test.prefetch, test.outstanding
		if got := l.room(); got != test.want {
			t.Errorf("%+v: room for %d", test, got)
		}
	}
}

func TestALanePrefetchesAsMuchAsItEndsAndAsMemoryAllows(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ ended, heft, want int }{
		{0, 500, 0},
		{100, 500, 200},
		{100, 0, 200},
		{fullTurn, 500, maxPrefetch},
		{fullTurn, 64 << 10, 256},
		{fullTurn, 1 << 20, 16},
		{fullTurn, 32 << 20, 0},
	} {
		if got := worthPrefetching(test.ended, test.heft); got != test.want {
			t.Errorf("%d ended, of %d octets each: %d rows, want %d", test.ended, test.heft, got, test.want)
		}
	}
}
