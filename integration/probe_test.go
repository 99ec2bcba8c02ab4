package integration_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// probed is an overloaded provider that is well again when it is probed, but
// whose first probe goes wrong.
type probed struct {
	requests, wrong atomic.Int64
	misbehave       func(context.Context) dispatch.Result
}

// The breaker opens at the third overload, when a fourth may be under way. The
// request after these is a probe.
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

func (p *probed) provider() drainer.Provider {
	return drainer.Provider{
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
		completed int // while the probe is under way, if it does not end
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
			w := newWorld(t, nil)
			provider := &probed{misbehave: probe.misbehave}
			w.enqueue("sim/act", 0, intents)
			launch(t, w.url, provider.provider())
			drainertest.Eventually(t, "the probe goes wrong", func() bool { return provider.wrong.Load() > 0 })
			launch(t, w.url, provider.provider()) // a worker whose probe never ends sends no other
			w.awaitCount("completed", probe.completed)
			fault.Injected(t, 50, int(provider.wrong.Load()))
			if probe.completed < intents {
				close(hangs)
				w.awaitCount("completed", intents)
			}
		})
	}
}
