package integration_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/program"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

const twoProviders = `version: 1
server: {listen: "127.0.0.1:0"}
providers:
  sim:
    adapter: http
    concurrency: 4
    rate_limit: {per_second: %d}
    http: {base_url: %s}
    tools:
      act: {http: {path: /v1/act}, idempotency: {class: key_idempotent, ttl: 24h, scope: account}}
  beacon:
    adapter: http
    http: {base_url: %s}
    tools:
      act: {http: {path: /v1/act}, idempotency: {class: key_idempotent, ttl: 24h, scope: account}}
`

// A rate limit keeps the provider busy until the pause comes. Work for another
// provider shows that the same processes go on.
func TestAPauseStopsAllReplicasUntilItIsResumed(t *testing.T) {
	t.Parallel()
	const intents, perSecond = 150, 40
	times := &arrivals{}
	w := newWorld(t, times.plan)
	beacon, beaconURL := dispatchtest.NewProvider(t, dispatchtest.Healthy())
	shell := program.New(t, w.url)
	config := program.WriteConfig(t, fmt.Sprintf(twoProviders, perSecond, w.baseURL, beaconURL))
	w.enqueue("sim/act", 0, intents)
	replicas := []*program.Daemon{shell.Start(config), shell.Start(config)}
	w.awaitRequests(10)

	if _, stderr := shell.Run(1, "providers", "pause", "simm", "--operator", "on-call", "--reason", "sends twice"); !strings.Contains(stderr, `there is no provider "simm"; did you mean "sim"?`) {
		t.Errorf("a name that nobody knows: %s", stderr)
	}
	shell.Run(0, "providers", "pause", "sim", "--operator", "on-call", "--reason", "sends twice")
	paused := time.Now()
	for _, replica := range replicas {
		replica.WaitFor(`"msg":"provider paused"`)
	}
	drainertest.Eventually(t, "what was in flight has ended", func() bool { return w.count("in_progress") == 0 })
	before := w.provider.Ledger.Audit().TotalRequests()
	if late := times.last().Sub(paused); late > 5*time.Second { // a second, on a machine with time to spare
		t.Errorf("the last request came %s after the pause", late)
	}
	w.enqueue("beacon/act", 1000, 1050)
	w.awaitCount("completed", before+50)
	if after := w.provider.Ledger.Audit().TotalRequests(); after != before || before == intents {
		t.Errorf("%d requests before the pause was known and %d after it, of %d; want it to stop midway", before, after, intents)
	}
	if tries := stored[int](w, `SELECT coalesce(sum(tries), 0) FROM outbox.queue`); tries != 0 {
		t.Errorf("what waits has lost %d tries", tries)
	}
	var providers []struct {
		Provider  string
		Paused    bool
		ChangedBy string `json:"changed_by"`
		Reason    string
	}
	shell.RunJSON(&providers, "providers", "list")
	if sim := providers[1]; sim.Provider != "sim" || !sim.Paused || sim.ChangedBy != "operator:on-call" || sim.Reason != "sends twice" {
		t.Errorf("listed as %+v", sim)
	}

	shell.Run(0, "providers", "resume", "sim", "--operator", "on-call", "--reason", "mended")
	w.awaitCount("completed", intents+50)
	if audit := w.provider.Ledger.Audit(); audit.TotalEffects() != intents || beacon.Ledger.Audit().TotalEffects() != 50 {
		t.Errorf("%d effects, want one for each of %d", audit.TotalEffects(), intents)
	}
	for _, replica := range replicas {
		replica.Terminate()
	}
}

// arrivals is the plan of a provider that notes when requests come.
type arrivals struct {
	mu    sync.Mutex
	times []time.Time
}

func (a *arrivals) plan(string, int) dispatchtest.Fault {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times = append(a.times, time.Now())
	return dispatchtest.None
}

func (a *arrivals) last() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.times[len(a.times)-1]
}

// The provider hangs midway, so that rows wait in the worker's memory. A pause
// of another provider shows that the worker has looked since the cancel.
func TestACancelledRunSendsNothingMoreThoughItWasClaimed(t *testing.T) {
	t.Parallel()
	const intents, answered, concurrency = 200, 30, 4
	var mu sync.Mutex
	asked := 0
	w := newWorld(t, func(string, int) dispatchtest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked > answered {
			return dispatchtest.HangBefore
		}
		return dispatchtest.None
	})
	t.Cleanup(w.provider.Release)
	shell := program.New(t, w.url)
	config := strings.Replace(fmt.Sprintf(twoProviders, 1, w.baseURL, w.baseURL), "    rate_limit: {per_second: 1}\n", "", 1)
	w.enqueue("sim/act", 0, intents)
	replica := shell.Start(program.WriteConfig(t, config))
	w.awaitRequests(answered + concurrency)
	w.awaitCount("completed", answered)
	drainertest.Eventually(t, "rows wait behind those that hang", func() bool { return w.count("in_progress") > concurrency })

	var closed struct {
		State      string
		Cancelled  int
		InProgress int `json:"in_progress"`
		Completed  int
	}
	shell.RunJSON(&closed, "runs", "cancel", "run-1", "--operator", "on-call", "--reason", "astray")
	if closed.State != "cancelled" || closed.Completed != answered || closed.InProgress <= concurrency || closed.Cancelled+closed.InProgress+answered != intents {
		t.Errorf("the cancel says %+v", closed)
	}
	if _, says := shell.Run(1, "enqueue", "--run", "run-1", "--step", "late", "--tool", "sim/act", "--scope", "s", "--payload", "{}"); !strings.Contains(says, "Start a new run") {
		t.Errorf("another step was refused with %q", says)
	}
	shell.Run(0, "providers", "pause", "beacon", "--operator", "on-call", "--reason", "look")
	replica.WaitFor(`"msg":"provider paused"`)
	w.provider.Release()

	w.awaitCount("cancelled", intents-answered-concurrency)
	w.awaitCount("completed", answered+concurrency)
	if requests := w.provider.Ledger.Audit().TotalRequests(); requests != answered+concurrency {
		t.Errorf("%d requests, want no more than the %d that were under way", requests, answered+concurrency)
	}
	w.assertOneEffectEach()
	replica.Terminate()
}
