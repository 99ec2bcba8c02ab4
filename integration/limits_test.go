package integration_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
)

// crowd is a provider that knows how many are with it at once.
type crowd struct {
	mu      sync.Mutex
	present int
	most    int
	sent    int
	leave   chan struct{} // closed to let everybody go; nil never holds anybody
}

func (c *crowd) Dispatch(context.Context, dispatch.Request) dispatch.Result {
	c.enter()
	defer c.exit()
	if c.leave != nil {
		<-c.leave
	}
	return dispatch.Result{Outcome: dispatch.Completed}
}

func (c *crowd) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	c.present++
	c.most = max(c.most, c.present)
}

func (c *crowd) exit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.present--
}

func (c *crowd) mostAtOnce() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

// fleet starts daemons that first work when each of them knows all the others:
// they learn of one another and of the end of the pause in the same look.
func fleet(t *testing.T, w *world, size int, provider drainer.Provider) {
	t.Helper()
	w.exec(`INSERT INTO outbox.provider (name, paused) VALUES ($1, true)`, provider.Name)
	for range size {
		launch(t, w.url, provider)
	}
	drainertest.Eventually(t, fmt.Sprintf("%d workers have joined", size), func() bool {
		return stored[int](w, `SELECT count(*) FROM outbox.worker`) == size
	})
	w.exec(`UPDATE outbox.provider SET paused = false`)
}

func TestTheFleetKeepsTheProvidersConcurrency(t *testing.T) {
	t.Parallel()
	const limit, workers, intents = 10, 3, 200
	w := newWorld(t, nil)
	c := &crowd{leave: make(chan struct{})}
	provider := drainer.Provider{
		Name: "sim", Adapter: c, Concurrency: limit, Timeout: drainertest.Patience,
		Tools: map[string]dispatch.Policy{"act": quickPolicy(dispatch.KeyIdempotent, 5)},
	}
	w.enqueue("sim/act", 0, intents)
	fleet(t, w, workers, provider)
	drainertest.Eventually(t, "every worker has its share and the provider is full", func() bool {
		return stored[int](w, `SELECT count(DISTINCT worker_id) FROM outbox.claim`) == workers && c.mostAtOnce() >= limit
	})
	if claimed := stored[int](w, `SELECT sum(cardinality(intent_ids)) FROM outbox.claim`); claimed != limit {
		t.Errorf("the workers took %d rows together, want %d", claimed, limit)
	}
	close(c.leave)
	w.awaitCount("completed", intents)
	if most := c.mostAtOnce(); most != limit {
		t.Errorf("%d dispatches were under way at once, want %d", most, limit)
	}
	drainertest.AssertInvariant(t, w.db)
}

func TestTheFleetKeepsTheProvidersRate(t *testing.T) {
	t.Parallel()
	const workers, intents = 3, 60
	limit := dispatch.RateLimit{PerSecond: 100, Burst: 10}
	w := newWorld(t, nil)
	provider := drainer.Provider{
		Name: "sim", Adapter: &crowd{}, Concurrency: 32, Timeout: drainertest.Patience, RateLimit: limit,
		Tools: map[string]dispatch.Policy{"act": quickPolicy(dispatch.KeyIdempotent, 5)},
	}
	fleet(t, w, workers, provider)
	began := time.Now()
	w.enqueue("sim/act", 0, intents)
	w.awaitCount("completed", intents)
	least := time.Duration(float64(intents-limit.Burst-workers) / limit.PerSecond * float64(time.Second))
	if took := time.Since(began); took < least {
		t.Errorf("%d dispatches took %s, at %v a second they take at least %s", intents, took, limit.PerSecond, least)
	}
}
