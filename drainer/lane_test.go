package drainer

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

func settlement(claim int64, size int) Settlement {
	return Settlement{
		Row:    &Row{ClaimID: claim},
		Result: dispatch.Result{Response: bytes.Repeat([]byte("x"), size)},
	}
}

func TestATurnTakesNoMoreOctetsThanItCanCarry(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		bytes []int
		limit int
		want  int
	}{
		"nothing":                          {nil, 10, 0},
		"all that fits":                    {[]int{4, 6}, 10, 2},
		"only what fits":                   {[]int{4, 6, 1}, 10, 2},
		"one that is larger than a turn":   {[]int{11, 1}, 10, 1},
		"bodiless ones cost nothing":       {[]int{0, 0, 0}, 0, 3},
		"a large one waits for the next":   {[]int{1, 50}, 10, 1},
		"order is kept, nothing overtakes": {[]int{9, 5, 1}, 10, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var settled []Settlement
			for _, bytes := range test.bytes {
				settled = append(settled, settlement(1, bytes))
			}
			if got := len(firstBytes(settled, test.limit)); got != test.want {
				t.Errorf("took %d settlements, want %d", got, test.want)
			}
		})
	}
}

// A claim finished while one of its rows is unsettled would take that row's
// fence away, and with it the row.
func TestAClaimEndsOnlyWithItsLastRow(t *testing.T) {
	t.Parallel()
	l := &lane{remembered: map[int64]int{1: 2, 2: 1, 3: 3}}
	all := []Settlement{settlement(1, 0), settlement(2, 0), settlement(3, 0), settlement(1, 0), settlement(3, 0)}

	if got := l.ended(all[:3]); !slices.Equal(got, []int64{2}) {
		t.Errorf("a turn of three rows ends %v, want only claim 2", got)
	}
	if got := l.ended(all); !slices.Equal(got, []int64{2, 1}) {
		t.Errorf("a turn of five rows ends %v, want claims 2 and 1, and not 3", got)
	}
}

// The lane itself hands rows out: at a full channel it would wait forever.
func TestALaneHasRoomForAllThatItMayClaim(t *testing.T) {
	t.Parallel()
	keyed := map[string]dispatch.Policy{"act": {Class: dispatch.KeyIdempotent}}
	for name, test := range map[string]struct {
		provider dispatch.Provider
		route    route
		want     int
	}{
		"it may hold rows back":            {dispatch.Provider{Tools: keyed}, route{"sim", "sim"}, 3 + maxPrefetch},
		"its rows could be sent elsewhere": {dispatch.Provider{Tools: keyed}, route{"other", "sim"}, 3},
		"a rate limits it":                 {dispatch.Provider{Tools: keyed, RateLimit: dispatch.RateLimit{PerSecond: 1}}, route{"sim", "sim"}, 3},
		"a lost row would need a human":    {dispatch.Provider{Tools: map[string]dispatch.Policy{"act": {Class: dispatch.NonIdempotent}}}, route{"sim", "sim"}, 3},
	} {
		test.provider.Name, test.provider.Concurrency = "sim", 3
		l := laneOn(test.route, test.provider)
		l.planner.prefetch = maxPrefetch
		if !l.planner.prefetches {
			l.planner.prefetch = 0
		}
		if room := l.planner.room(l.load(t.Context())); room != test.want {
			t.Errorf("%s: it claims %d, and has room for %d", name, room, test.want)
		}
	}
}

func TestAnOutcomeThatWaitsKeepsNothingOfWhatWasSent(t *testing.T) {
	t.Parallel()
	l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { return healthy }))
	l.pool.turns.put(&Row{
		ClaimedAt: time.Now(), Tuple: dispatch.Tuple{ToolName: "sim/act"},
		Payload: []byte(`{}`), Headers: map[string]string{"baggage": "b"},
	})
	l.pool.dispatchAll(lifetimes{stop: t.Context(), abort: t.Context()}, l.pool.turns.take)
	if waits := l.pool.outcomes.take(nil, 1)[0]; waits.Result.Outcome != dispatch.Completed || waits.Row.Payload != nil || waits.Row.Headers != nil {
		t.Errorf("%+v of %+v waits for the database", waits.Result, waits.Row)
	}
}

func TestALaneThatBeginsToWaitOwesOneMoreLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i idleness
		if i.mark(time.Now()) != IdleWaiting {
			t.Fatal("want a lane that begins to ask for notifications")
		}
		if !i.looked(IdleWaiting, time.Now(), time.Now(), 0) {
			t.Error("a row may have been committed before the mark stood: one more look is owed")
		}
		if i.mark(time.Now()) != IdleUnchanged {
			t.Error("the mark stands and need not be written again")
		}
		time.Sleep(IdleFor/2 + time.Millisecond)
		if i.mark(time.Now()) != IdleWaiting {
			t.Error("want the mark renewed before it runs out")
		}
		if i.looked(IdleWaiting, time.Now(), time.Now(), 0) {
			t.Error("a renewed mark leaves no gap to look into")
		}
	})
}

func TestALaneLooksOutForThoseWhoCommitAMomentLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i idleness
		i.looked(IdleWaiting, time.Now(), time.Now(), 0)
		if i.wait(time.Now()) != pollInterval {
			t.Error("want a lane that found nothing to wait")
		}
		i.looked(IdleUnchanged, time.Now(), time.Now(), 1)
		const ms = time.Millisecond
		for _, want := range []time.Duration{2 * ms, 2 * ms, 4 * ms, 8 * ms, pollInterval} {
			if got := i.wait(time.Now()); got != want {
				t.Errorf("it waits %s, want %s", got, want)
			}
			time.Sleep(i.wait(time.Now()))
			i.looked(IdleUnchanged, time.Now(), time.Now(), 0)
		}
	})
}

func TestAStreamOfWorkStopsTheNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i idleness
		i.looked(IdleWaiting, time.Now(), time.Now(), 0)
		i.looked(IdleUnchanged, time.Now(), time.Now(), busyRows)
		if i.mark(time.Now()) != IdleBusy {
			t.Error("want producers told to stop")
		}
		i.looked(IdleBusy, time.Now(), time.Now(), busyRows)
		if i.mark(time.Now()) != IdleUnchanged {
			t.Error("want it told once")
		}
		i.looked(IdleUnchanged, time.Now(), time.Now(), 1)
		if i.mark(time.Now()) != IdleUnchanged {
			t.Error("want no notifications while the stream trickles")
		}
		time.Sleep(streamRest)
		if owed := i.looked(IdleUnchanged, time.Now(), time.Now(), 0); !owed || i.mark(time.Now()) != IdleWaiting {
			t.Error("want notifications again once the stream is over, and a look without a wait that asks for them")
		}
		if i.wait(time.Now()) != pollInterval {
			t.Error("want the lane to wait for notifications")
		}
	})
}

// restingStream returns the idleness of a lane that asked for notifications, got many rows, and then none.
func restingStream() (i idleness) {
	i.looked(IdleWaiting, time.Now(), time.Now(), 0)
	i.looked(IdleUnchanged, time.Now(), time.Now(), busyRows)
	i.looked(IdleBusy, time.Now(), time.Now(), 0)
	return i
}

func TestAStreamThatRestsForAMomentGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := restingStream()
		for range 10 {
			time.Sleep(streamRest - time.Millisecond)
			begun := time.Now()
			time.Sleep(time.Second) // the look itself may take long
			if owed := i.looked(IdleUnchanged, begun, time.Now(), 0); owed || i.mark(time.Now()) != IdleUnchanged || i.wait(time.Now()) != lookInterval {
				t.Fatal("want no notifications, and a lane that soon looks for itself")
			}
			i.looked(IdleUnchanged, time.Now(), time.Now(), busyRows)
		}
	})
}

func TestATrickleAfterAStreamIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := restingStream()
		for range busyRows - 1 {
			time.Sleep(streamRest / 4)
			i.looked(IdleUnchanged, time.Now(), time.Now(), 1)
			if i.looked(IdleUnchanged, time.Now(), time.Now(), 0) {
				return
			}
		}
		t.Error("the lane looks for itself as long as there is a row now and then")
	})
}

func TestLooksThatEachFindALittleAreAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i idleness
		i.looked(IdleWaiting, time.Now(), time.Now(), 0)
		for range 3 * busyRows {
			i.looked(IdleUnchanged, time.Now(), time.Now(), 1)
			i.looked(IdleUnchanged, time.Now(), time.Now(), 0)
		}
		if i.mark(time.Now()) != IdleUnchanged {
			t.Fatal("rows that come one by one are worth a notification each")
		}
		for range busyRows {
			i.looked(IdleUnchanged, time.Now(), time.Now(), 1)
		}
		if i.mark(time.Now()) != IdleBusy {
			t.Error("want producers told to stop: they keep up with every look")
		}
	})
}

func TestAMarkThatRanOutOwesALookAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i idleness
		i.looked(IdleWaiting, time.Now(), time.Now(), 0)
		time.Sleep(IdleFor)
		if !i.looked(IdleWaiting, time.Now(), time.Now(), 0) {
			t.Error("while no mark stood, a producer may have committed in silence")
		}
	})
}

// dispatchFunc is an adapter in a few lines.
type dispatchFunc func(context.Context) dispatch.Result

func (f dispatchFunc) Dispatch(ctx context.Context, _ dispatch.Request) dispatch.Result {
	return f(ctx)
}

// laneTo returns a lane of the provider "sim", whose tool "act" takes keys.
func laneTo(adapter dispatch.Adapter) *lane {
	sim := dispatch.Provider{
		Name: "sim", Adapter: adapter, Concurrency: 1, Timeout: time.Second,
		Breaker: dispatch.BreakerPolicy{ConsecutiveFailures: 3, CoolDown: time.Minute},
		Tools:   map[string]dispatch.Policy{"act": {Class: dispatch.KeyIdempotent, KeyTTL: time.Minute, MaxAttempts: 3}},
	}
	return laneOn(route{"sim", "sim"}, sim)
}

func laneOn(way route, server dispatch.Provider) *lane {
	observer, _ := observing(server)
	return newLane(way, &session{
		upstreams: map[string]*upstream{way.provider: newUpstream(server), way.server: newUpstream(server)},
		closed:    &closedRuns{},
		lease:     newLease(beatFunc(nil), "worker", timing, time.Now()),
		observer:  observer,
		log:       observer.log,
		committer: newCommitter(nil, "worker", nil, nil),
	})
}

func TestARowThatMustNotBeSentNowIsGivenBackUnsentAndUncounted(t *testing.T) {
	t.Parallel()
	fleet := func(gate Gate) func(*lane, *Row) {
		return func(l *lane, _ *Row) {
			gate.Name, gate.Workers = "sim", 1
			l.server.applyGate(gate)
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
		"the lease may be over":      {func(l *lane, _ *Row) { l.pool.lease.renew(longAgo) }, "", 0},
		"the provider is paused":     {fleet(Gate{Breaker: BreakerClosed, Paused: true}), "provider_paused", fleetInterval},
		"the provider is overloaded": {fleet(Gate{Breaker: BreakerOpen, OpenFor: time.Minute}), "circuit_open", fleetInterval},
		"its run was closed":         {func(l *lane, row *Row) { l.pool.closed.add([]string{row.Tuple.AgentRunID}) }, "run_closed", 0},
		"another run is rolled back": {func(l *lane, _ *Row) { l.pool.closed.add([]string{"another"}) }, "sent", 0},
		"it may be the probe": {func(l *lane, row *Row) {
			fleet(Gate{Breaker: BreakerOpen, OpenFor: time.Minute})(l, row)
			row.Probe = "sim"
		}, "sent", 0},
		"nothing holds it back at all": {func(*lane, *Row) {}, "sent", 0},
	} {
		sent := false
		l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { sent = true; return healthy }))
		row := &Row{Tries: 2, ClaimedAt: time.Now(), Tuple: dispatch.Tuple{AgentRunID: "run", ToolName: "sim/act"}}
		test.given(l, row)
		got := l.pool.attempt(lifetimes{stop: t.Context(), abort: t.Context()}, row)
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

func TestWhatEitherOfTwoProvidersMayHaveAppliedEndsAsUnknown(t *testing.T) {
	t.Parallel()
	lookup := &dispatch.Lookup{Operation: "find"}
	for name, test := range map[string]struct {
		policy  dispatch.Policy
		given   func(*Row)
		unknown bool
	}{
		"it has a key":                    {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour}, func(*Row) {}, true},
		"it has a key and can be asked":   {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour, Lookup: lookup}, func(*Row) {}, true},
		"it is to be asked":               {dispatch.Policy{Class: dispatch.NonIdempotent, Lookup: lookup}, func(row *Row) { row.Lookup = true }, true},
		"its run is rolled back":          {dispatch.Policy{Class: dispatch.NonIdempotent, Lookup: lookup}, func(row *Row) { row.Closed, row.InSaga = true, true }, true},
		"it is the probe":                 {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour}, func(row *Row) { row.Probe = "sim" }, true},
		"it only reads":                   {dispatch.Policy{Class: dispatch.ReadOnly}, func(*Row) {}, false},
		"its own provider may have it":    {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour}, func(row *Row) { row.Via = "" }, false},
		"it cannot have been applied yet": {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour}, func(row *Row) { row.MaybeApplied = false }, false},
	} {
		sent := false
		l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { sent = true; return healthy }))
		test.policy.MaxAttempts = 5
		l.pool.upstreams["sim"].provider.Tools["act"] = test.policy
		enqueued := time.Now().Add(-time.Minute)
		row := &Row{Tries: 2, ClaimedAt: time.Now(), FirstAttemptAt: &enqueued, MaybeApplied: true, Via: "sim", Tuple: dispatch.Tuple{ToolName: "sim/act"}}
		test.given(row)
		got := l.pool.attempt(lifetimes{stop: t.Context(), abort: t.Context()}, row)
		if unknown := got.Decision.Status == dispatch.StatusUnknown && !got.Decision.Back(); sent == test.unknown || unknown != test.unknown {
			t.Errorf("%s: sent %v, then %+v; want unknown %v", name, sent, got.Decision, test.unknown)
		}
		// an operator's retry reads in the record where it may have been applied
		if test.unknown && (got.Row.Via != "sim" || got.Row.Lookup || got.Result.Outcome != dispatch.Lost || got.StartedAt.IsZero()) {
			t.Errorf("%s: recorded as %+v of %+v", name, got.Result, got.Row)
		}
		if isGivenUp := len(got.Breakers) == 1 && got.Breakers[0].Probe && got.Breakers[0].Open; test.unknown && isGivenUp != (row.Probe != "") {
			t.Errorf("%s: breakers change to %+v", name, got.Breakers)
		}
	}
}

func TestARowOfAShutOperationWaitsWhereItDelaysNoNeighbour(t *testing.T) {
	t.Parallel()
	shut := map[string]Gate{"sim/act": {Name: "sim/act", Breaker: BreakerOpen, OpenFor: time.Minute}}
	for name, test := range map[string]struct {
		way   route
		row   Row
		park  string
		delay time.Duration
	}{
		"its own provider's lane": {route{"sim", "sim"}, Row{Tuple: dispatch.Tuple{ToolName: "sim/act"}}, "sim/act", 0},
		"a fallback's":            {route{"own", "sim"}, Row{Via: "sim", Tuple: dispatch.Tuple{ToolName: "own/act"}}, "own", time.Minute},
	} {
		sent := false
		l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { sent = true; return healthy }))
		l = laneOn(test.way, l.server.provider)
		l.pool.upstreams["sim"].applyOperationGates(shut)
		test.row.Tries, test.row.ClaimedAt = 2, time.Now()
		got := l.pool.attempt(lifetimes{stop: t.Context(), abort: t.Context()}, &test.row)
		if sent || got.Park != test.park || got.Decision.Tries != 1 || got.ParkFor.Round(time.Second) != test.delay {
			t.Errorf("%s: sent %v, parked in %q after %d tries, due in %s; want %q and %s", name, sent, got.Park, got.Decision.Tries, got.ParkFor, test.park, test.delay)
		}
	}
}

// A database that does not answer may have given it the turn, which must outlast the wait and the request.
func TestARowWaitsForItsTurnToTryAFallbacksOperationForABoundedTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sent := false
		l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { sent = true; return healthy }))
		l = laneOn(route{"own", "sim"}, l.server.provider)
		l.pool.upstreams["sim"].applyOperationGates(map[string]Gate{"sim/act": {Name: "sim/act", Breaker: BreakerOpen}})
		var probeFor time.Duration
		l.pool.claims = silentStore{probeFor: &probeFor}
		began := time.Now()
		row := &Row{Via: "sim", Tries: 1, ClaimedAt: began, Tuple: dispatch.Tuple{ToolName: "own/act"}}
		if got := l.pool.attempt(lifetimes{stop: t.Context(), abort: t.Context()}, row); sent || got.Park != "own" || row.Probe != "" {
			t.Errorf("sent %v, parked in %q, probes %q", sent, got.Park, row.Probe)
		}
		if waited := time.Since(began); waited != batchTimeout || probeFor != waited+l.server.provider.Timeout {
			t.Errorf("it waited %s for a turn of %s", waited, probeFor)
		}
	})
}

func TestAShutOperationIsTriedOnceInAWhileAndBesideTheOthers(t *testing.T) {
	t.Parallel()
	l := laneTo(nil)
	l.server.applyOperationGates(map[string]Gate{"sim/act": {Name: "sim/act", Breaker: BreakerOpen}})
	first := l.planner.nextClaim(l.load(t.Context()))
	if first.Operation != "act" || first.Limit != 1 || first.ProbeFor == 0 || len(first.Parts) > 0 {
		t.Errorf("the first claim is %+v, want a probe of the operation", first)
	}
	l.planner.claimed(first, time.Now(), time.Now(), ClaimReply{})
	if l.planner.scan.nothing || !l.planner.scan.again() {
		t.Error("what the probe found is taken for what the lane holds")
	}
	if second := l.planner.nextClaim(l.load(t.Context())); second.Operation != "" || second.ProbeFor != 0 {
		t.Errorf("the second claim is %+v, want one of the lane's own rows", second)
	}
	l.planner.triedAt = time.Now().Add(-pollInterval)
	l.probes["sim/act"] = 1
	if third := l.planner.nextClaim(l.load(t.Context())); third.Operation != "" {
		t.Errorf("a second probe is claimed while one is under way: %+v", third)
	}
}

func TestAStepOfARunThatGoesBackIsNotSentButEnded(t *testing.T) {
	t.Parallel()
	for inDoubt, want := range map[bool]dispatch.Status{false: dispatch.StatusFailed, true: dispatch.StatusUnknown} {
		l := laneTo(dispatchFunc(func(context.Context) dispatch.Result { t.Error("it was sent"); return healthy }))
		row := &Row{Tries: 2, MaybeApplied: inDoubt, Closed: true, ClaimedAt: time.Now(), Tuple: dispatch.Tuple{ToolName: "sim/act"}}
		got := l.pool.attempt(lifetimes{stop: t.Context(), abort: t.Context()}, row)
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
		got := l.pool.attempt(life, &Row{Tuple: dispatch.Tuple{ToolName: "sim/act"}})
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
		got := l.pool.attempt(lifetimes{stop: t.Context(), abort: abort}, row)
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
			row := &Row{IntentID: n, Tuple: dispatch.Tuple{ToolName: "sim/act"}}
			if n == 1 {
				row.Probe = "sim"
			}
			l.pool.turns.put(row)
		}
		l.outstanding = 3
		l.releaseWaiting(0, test.class)
		if l.pool.waiting() != test.stays || l.outstanding != test.stays || len(l.settled) != 3-test.stays {
			t.Errorf("%s: %d stay, %d are outstanding and %d are given back", name, l.pool.waiting(), l.outstanding, len(l.settled))
		}
		if test.stays == 1 && l.pool.turns.take().Probe == "" {
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
		l.planner.prefetch, l.outstanding = test.prefetch, test.outstanding
		if got := l.planner.room(l.load(t.Context())); got != test.want {
			t.Errorf("%+v: room for %d", test, got)
		}
	}
}

func TestALanePrefetchesAsMuchAsItEndsAndAsMemoryAllows(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ ended, payloadBytes, want int }{
		{0, 500, 0},
		{100, 500, 200},
		{100, 0, 200},
		{fullBatch, 500, maxPrefetch},
		{fullBatch, 64 << 10, 256},
		{fullBatch, 1 << 20, 16},
		{fullBatch, 32 << 20, 0},
	} {
		p := planner{prefetches: true, payloadBytes: test.payloadBytes}
		if p.settled(test.ended, passRows); p.prefetch != test.want {
			t.Errorf("%d ended, of %d bytes each: %d rows, want %d", test.ended, test.payloadBytes, p.prefetch, test.want)
		}
	}
}

func TestTenantsTakeTurnsByWeight(t *testing.T) {
	t.Parallel()
	var waiting fairQueue
	put := func(first int64, tenants ...int16) {
		for i, tenant := range tenants {
			waiting.put(&Row{IntentID: first + int64(i), Tenant: tenant, Weight: map[int16]int{1: 2}[tenant]})
		}
	}
	take := func(rows int) (order []int64) {
		for range rows {
			order = append(order, waiting.take().IntentID)
		}
		return order
	}
	put(0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2)
	if got, want := take(5), []int64{0, 1, 8, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("taken in the order %v, want %v", got, want)
	}
	put(10, 3) // it does not wait for all that was claimed before
	if got := take(5); slices.Index(got, 9) != 0 || slices.Index(got, 10) < 2 || slices.Index(got, 10) > 3 {
		t.Errorf("taken in the order %v, want 9 first and 10 in its turn", got)
	}
	take(1)
	if waiting.len() != 0 || waiting.take() != nil {
		t.Errorf("%d rows wait", waiting.len())
	}
	put(11, 3, 3)
	if got, want := take(2), []int64{11, 12}; !slices.Equal(got, want) {
		t.Errorf("taken in the order %v, want %v", got, want)
	}
}

// A tenant that always has a row waiting takes no more room for it than one whose rows run out.
func TestALineThatNeverEndsTakesNoMoreRoom(t *testing.T) {
	t.Parallel()
	var waiting fairQueue
	waiting.put(&Row{IntentID: 0})
	for id := int64(1); id <= 100_000; id++ {
		waiting.put(&Row{IntentID: id})
		if row := waiting.take(); row.IntentID != id-1 {
			t.Fatalf("row %d is taken, want %d", row.IntentID, id-1)
		}
	}
	if room := cap(waiting.of[0].rows); room > 1000 {
		t.Errorf("one row waits, and there is room for %d", room)
	}
}
