package integration_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/program"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

const rollingConfig = `version: 1
server: {listen: "127.0.0.1:0"}
worker: {lease: 60s}
providers:
  sim:
    adapter: http
    concurrency: 24
    http: {base_url: %s}
    tools: {act: {http: {path: /v1/act, response: {ref: .id}}, idempotency: {class: %s}}}
`

// A deployment replaces one replica after another while agents go on. Nobody
// is declared dead by it, so no intent waits for a lease to end, and not even
// what must not be repeated is in doubt.
func TestARollingRestartUnderLoadIsNotNoticed(t *testing.T) {
	t.Parallel()
	for class, declared := range map[string]string{
		"key_idempotent": "key_idempotent, ttl: 24h, scope: account",
		"non_idempotent": "non_idempotent",
	} {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			const replicas, rounds = 3, 2
			w := newWorld(t, dispatchtest.Healthy())
			shell := program.New(t, w.url)
			config := program.WriteConfig(t, fmt.Sprintf(rollingConfig, w.baseURL, declared))
			var fleet [replicas]*program.Daemon
			for i := range fleet {
				fleet[i] = shell.Start(config)
			}
			stop := make(chan struct{})
			enqueued := 0
			var agents sync.WaitGroup
			agents.Go(func() { enqueued = w.enqueueUntil(stop) })
			for range rounds {
				for i := range fleet {
					next := shell.Start(config)
					fleet[i].Terminate()
					fleet[i] = next
				}
			}
			close(stop)
			agents.Wait()

			w.awaitCount("completed", enqueued)
			w.assertOneEffectEach()
			w.assertNoClaims()
			if doubtful := stored[int](w, `SELECT count(*) FROM outbox.attempt WHERE outcome NOT IN ('completed', 'released')`); doubtful > 0 {
				t.Errorf("%d attempts ended neither completed nor given back", doubtful)
			}
			late := stored[float64](w, `SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - created_at)) FROM outbox.status`)
			t.Logf("%d intents, p99 of delivery %.0f ms", enqueued, 1000*late)
			if late > 20 { // a third of the lease: whoever waits for a burial waits for all of it
				t.Errorf("one in a hundred intents took %.1f s", late)
			}
		})
	}
}

// enqueueUntil commits ten intents at a time, and reports how many there were.
func (w *world) enqueueUntil(stop <-chan struct{}) (enqueued int) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return enqueued
		case <-ticker.C:
			w.enqueue("sim/act", enqueued, enqueued+10)
			enqueued += 10
		}
	}
}
