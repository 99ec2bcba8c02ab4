package integration_test

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/program"
)

const joinedLine = `"msg":"joined"`

func TestOutcomesSurviveAnOutageLongerThanTheLease(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, dispatchtest.Script(dispatchtest.HangAfter))
	rig.EnqueueSteps("sim/act", 0, 1)
	with := setupOf(rig, dispatch.NonIdempotent, shortLease)
	line := pgproxy.New(t, rig.URL)
	with.DatabaseURL = line.Behind(t, rig.URL)
	daemon := start(t, with, "DRAINER_FAILPOINTS=after_reply=hold")
	rig.AwaitEffects(1)
	rig.Provider.Release()
	daemon.WaitFor("failpoint after_reply hold") // only this process knows the outcome

	joined := daemon.Logged(joinedLine)
	line.TakeDown()
	daemon.Signal(syscall.SIGUSR1)
	drainertest.Eventually(t, "the batch fails", func() bool { return daemon.Logged("batch failed") > 0 })
	drainertest.Eventually(t, "the lease is over", func() bool {
		return harness.Stored[bool](rig, `SELECT beat_at < now() - interval '3.5 seconds' FROM outbox.worker`)
	})
	if got := rig.CountStatus("in_progress"); got != 1 {
		t.Fatalf("%d intents in progress during the outage, want 1", got)
	}
	line.BringUp()

	rig.AwaitStatus("completed", 1)
	rig.AssertOutcomes("completed")
	drainertest.Eventually(t, "the daemon starts over", func() bool { return daemon.Logged(joinedLine) > joined })
	rig.EnqueueSteps("sim/act", 1, 2)
	rig.AwaitStatus("completed", 2)
	rig.AssertOneEffectEach()
	if failures := daemon.Logged("cannot join yet") + daemon.Logged("batch failed"); failures > 20 {
		t.Errorf("%d failures in a short outage: a tight loop", failures)
	}
}

func TestAnOverloadedProviderIsLeftAloneByAllReplicas(t *testing.T) {
	t.Parallel()
	const (
		intents, replicas, probes = 200, 2, 4
		failures, coolDown        = 3, time.Second
	)
	down := &outage{}
	down.now.Store(true)
	rig := harness.Plain(t, down.plan)
	rig.EnqueueSteps("sim/act", 0, intents)
	with := setupOf(rig, dispatch.KeyIdempotent, patientLease)
	with.Providers[0].Breaker = dispatch.BreakerPolicy{ConsecutiveFailures: failures, CoolDown: coolDown}
	daemons := []*program.Daemon{start(t, with), start(t, with)}

	drainertest.Eventually(t, "it is probed again and again", func() bool {
		drainertest.AssertInvariant(t, rig.DB)
		return len(down.waves(coolDown)) > probes
	})
	waves := down.waves(coolDown)
	if atOnce := replicas * (failures - 1 + with.Providers[0].Concurrency); waves[0] > atOnce {
		t.Errorf("%d requests before the breaker opened, want at most %d", waves[0], atOnce)
	}
	for i, requests := range waves[1:] {
		if requests != 1 {
			t.Errorf("%d requests after cool-down %d, want one probe", requests, i+1)
		}
	}
	drainertest.Eventually(t, "only what was sent before the breaker opened counts as a try", func() bool {
		requests := rig.Provider.Ledger.Audit().TotalRequests()
		return harness.Stored[int](rig, `SELECT coalesce(sum(tries), 0) FROM outbox.queue`) == waves[0] &&
			harness.Stored[int](rig, `SELECT coalesce(sum(attempts), 0) FROM outbox.status`) == requests &&
			rig.Provider.Ledger.Audit().TotalRequests() == requests
	})

	down.now.Store(false)
	rig.AwaitStatus("completed", intents)
	rig.AssertOneEffectEach()
	for _, daemon := range daemons {
		daemon.Terminate()
	}
	rig.AssertNoClaims()
}

// outage is the plan of a provider that is overloaded while now is true.
type outage struct {
	now atomic.Bool

	mu       sync.Mutex
	requests []time.Time
}

func (o *outage) plan(string, int) dispatchtest.Fault {
	if !o.now.Load() {
		return dispatchtest.None
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests = append(o.requests, time.Now())
	return dispatchtest.Overloaded
}

// waves counts the requests between silences of at least that long.
func (o *outage) waves(silence time.Duration) (sizes []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var last time.Time
	for _, at := range o.requests {
		if at.Sub(last) >= silence {
			sizes = append(sizes, 0)
		}
		sizes[len(sizes)-1]++
		last = at
	}
	return sizes
}

// probed is an overloaded provider that recovers before the first probe. That probe misbehaves.
type probed struct {
	requests, wrong atomic.Int64
	misbehave       func(context.Context) dispatch.Result
}

// The breaker opens at the third overload, when a fourth request may be in flight. The next request is a probe.
const (
	slots     = 2
	opening   = 3
	overloads = opening + slots - 1
)

func (p *probed) Dispatch(ctx context.Context, _ dispatch.Request) dispatch.Result {
	switch n := p.requests.Add(1); {
	case n <= overloads:
		return overload
	case n == overloads+1:
		p.wrong.Add(1)
		return p.misbehave(ctx)
	}
	return well
}

func (p *probed) provider() dispatch.Provider {
	return dispatch.Provider{
		Name: "sim", Adapter: p, Concurrency: slots, Timeout: 300 * time.Millisecond,
		Breaker: dispatch.BreakerPolicy{ConsecutiveFailures: opening, CoolDown: 50 * time.Millisecond},
		Tools:   map[string]dispatch.Policy{"act": quickPolicy(dispatch.KeyIdempotent, 50)},
	}
}

func TestAProbeThatGoesWrongLeavesTheTurnToAnother(t *testing.T) {
	t.Parallel()
	const intents = 20
	hangs := make(chan struct{})
	for name, probe := range map[string]struct {
		misbehave func(context.Context) dispatch.Result
		completed int // completed before the hanging probe ends
	}{
		"it panics": {func(context.Context) dispatch.Result { panic("broken") }, intents},
		"it hangs until its deadline": {func(ctx context.Context) dispatch.Result {
			<-ctx.Done()
			return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "timeout"}
		}, intents},
		"it hangs for good": {func(context.Context) dispatch.Result {
			<-hangs
			return well
		}, intents - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig := harness.Plain(t, nil)
			provider := &probed{misbehave: probe.misbehave}
			rig.EnqueueSteps("sim/act", 0, intents)
			launch(t, rig.URL, provider.provider())
			drainertest.Eventually(t, "the probe goes wrong", func() bool { return provider.wrong.Load() > 0 })
			launch(t, rig.URL, provider.provider()) // a worker whose probe never ends sends no other probe
			rig.AwaitStatus("completed", probe.completed)
			fault.Injected(t, 50, int(provider.wrong.Load()))
			if probe.completed < intents {
				close(hangs)
				rig.AwaitStatus("completed", intents)
			}
		})
	}
}
