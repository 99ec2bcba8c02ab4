package integration_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestAnOverloadedProviderIsLeftAloneByAllReplicas(t *testing.T) {
	t.Parallel()
	const (
		intents, replicas, probes = 200, 2, 4
		failures, coolDown        = 3, time.Second
	)
	down := &outage{}
	down.now.Store(true)
	w := newWorld(t, down.plan)
	w.enqueue("sim/act", 0, intents)
	with := w.setup(dispatch.KeyIdempotent, patientLease)
	with.Providers[0].Breaker = dispatch.BreakerPolicy{ConsecutiveFailures: failures, CoolDown: coolDown}
	daemons := []*daemon{start(t, with), start(t, with)}

	drainertest.Eventually(t, "it is probed again and again", func() bool {
		drainertest.AssertInvariant(t, w.db)
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
		requests := w.provider.Ledger.Audit().TotalRequests()
		return stored[int](w, `SELECT coalesce(sum(tries), 0) FROM outbox.queue`) == waves[0] &&
			stored[int](w, `SELECT coalesce(sum(attempts), 0) FROM outbox.status`) == requests &&
			w.provider.Ledger.Audit().TotalRequests() == requests
	})

	down.now.Store(false)
	w.awaitCount("completed", intents)
	w.assertOneEffectEach()
	for _, daemon := range daemons {
		if code := daemon.terminate(); code != 0 {
			t.Errorf("a replica ended with exit code %d", code)
		}
	}
	w.assertNoClaims()
}

// outage is a provider's plan: overloaded, for now.
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
