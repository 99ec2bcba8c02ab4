package integration_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// scripted is a provider that gives the n-th request the n-th answer.
type scripted struct {
	requests atomic.Int64
	answer   func(n int64) dispatch.Result
}

func (s *scripted) Dispatch(context.Context, dispatch.Request) dispatch.Result {
	n := s.requests.Add(1)
	if s.answer == nil {
		return well
	}
	return s.answer(n)
}

func (s *scripted) as(name string, concurrency int) dispatch.Provider {
	return dispatch.Provider{
		Name: name, Adapter: s, Concurrency: concurrency, Timeout: drainertest.Patience,
		Breaker: dispatch.BreakerPolicy{ConsecutiveFailures: 3, CoolDown: 50 * time.Millisecond},
		Tools:   map[string]dispatch.Policy{"act": quickPolicy(dispatch.KeyIdempotent, 50)},
	}
}

var (
	well     = dispatch.Result{Outcome: dispatch.Completed, HTTPStatus: 200}
	overload = dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 503}
	doubtful = dispatch.Result{Outcome: dispatch.Ambiguous, HTTPStatus: 500}
)

func always(result dispatch.Result) func(int64) dispatch.Result {
	return func(int64) dispatch.Result { return result }
}

// firstInOrder is a worker that comes first in the order of shares.
const firstInOrder = "00000000-0000-0000-0000-000000000001"

func join(rig *harness.Rig, worker, provider string) {
	rig.T.Helper()
	rig.Exec(`INSERT INTO outbox.worker (worker_id, providers, beat_at) VALUES ($1, ARRAY[$2], now() + interval '1 hour')`, worker, provider)
}

func TestAFallbackThatNothingElseUsesIsTriedAgain(t *testing.T) {
	t.Parallel()
	const intents = 30
	rig := harness.Plain(t, nil)
	var down atomic.Bool
	down.Store(true)
	backup := &scripted{answer: func(n int64) dispatch.Result {
		switch {
		case n <= 2:
			return doubtful
		case down.Load():
			return overload
		}
		return well
	}}
	own := (&scripted{answer: always(overload)}).as("sim", 8)
	own.Fallback = "backup"
	rig.Exec(`INSERT INTO outbox.provider (name) VALUES ('backup')`)
	rig.EnqueueSteps("sim/act", 0, intents)
	launch(t, rig.URL, own, backup.as("backup", 8))
	drainertest.Eventually(t, "the fallback's breaker is open", func() bool {
		return harness.Stored[string](rig, `SELECT state FROM outbox.provider WHERE name = 'backup'`) != "closed"
	})
	down.Store(false)
	rig.AwaitStatus("completed", intents)
}

// Only the fallback's own rows are parked under the names of its operations.
func TestAFallbacksOperationThatOnlyOthersUseIsTriedAgain(t *testing.T) {
	t.Parallel()
	const intents = 10
	for name, trouble := range map[string]dispatch.Result{
		"its queue is missing": {Outcome: dispatch.NotSent, OfOperation: true},
		"it is forbidden":      {Outcome: dispatch.Forbidden, HTTPStatus: 403},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig := harness.Plain(t, nil)
			var down atomic.Bool
			down.Store(true)
			server := (&scripted{answer: func(int64) dispatch.Result {
				if down.Load() {
					return trouble
				}
				return well
			}}).as("backup", 8)
			server.Tools["other"] = server.Tools["act"]
			own := (&scripted{answer: always(overload)}).as("sim", 8)
			own.Fallback = "backup"
			for run := range intents {
				rig.Exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ($1, '1', 'sim/act', 's', '{}')`, fmt.Sprint("run-", run))
			}
			launch(t, rig.URL, own, server)
			drainertest.Eventually(t, "the fallback's operation is shut", func() bool {
				return harness.Stored[bool](rig, `SELECT EXISTS (SELECT FROM outbox.tool WHERE name = 'backup/act' AND state <> 'closed')`)
			})
			down.Store(false)
			rig.Exec(`UPDATE outbox.tool SET open_until = now() WHERE name = 'backup/act' AND state = 'open'`) // as drainer providers resume does
			rig.AwaitStatus("completed", intents)
			if state := harness.Stored[string](rig, `SELECT state FROM outbox.tool WHERE name = 'backup/act'`); state != "closed" {
				t.Errorf("the operation is %s", state)
			}
			if waits := harness.Stored[int](rig, `SELECT count(*)::int FROM outbox.attempt WHERE error = 'circuit_open'`); waits > intents {
				t.Errorf("%d attempts are on record of rows that only waited", waits)
			}
		})
	}
}

func TestRowsInDoubtAtAFallbackDoNotWaitForTheirOwnProvider(t *testing.T) {
	t.Parallel()
	const intents = 10
	rig := harness.Plain(t, nil)
	backup := &scripted{answer: func(n int64) dispatch.Result {
		if n <= intents {
			return doubtful
		}
		return well
	}}
	own := (&scripted{answer: always(overload)}).as("sim", 8)
	own.Fallback = "backup"
	rig.EnqueueSteps("sim/act", 0, intents)
	launch(t, rig.URL, own, backup.as("backup", 8))
	rig.AwaitStatus("completed", intents)
}

func TestAWorkerWithoutAShareGivesBackWhatItHolds(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	provider := &scripted{}
	rig.EnqueueSteps("sim/act", 0, 2000)
	launch(t, rig.URL, provider.as("sim", 1))
	drainertest.Eventually(t, "it drains", func() bool { return provider.requests.Load() > 20 })
	join(rig, firstInOrder, "sim")
	drainertest.Eventually(t, "it holds no row any more, and takes none", func() bool {
		return harness.Stored[int](rig, `SELECT count(*) FROM outbox.claim`) == 0
	})
	rig.Exec(`DELETE FROM outbox.worker WHERE worker_id = $1`, firstInOrder)
	rig.AwaitStatus("completed", 2000)
}

func TestAWorkerThatServesOtherProvidersTakesNoShare(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	join(rig, firstInOrder, "other")
	rig.EnqueueSteps("sim/act", 0, 5)
	launch(t, rig.URL, (&scripted{}).as("sim", 1))
	rig.AwaitStatus("completed", 5)
}

func TestDrainingOnceWithoutAShareEnds(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	join(rig, firstInOrder, "sim")
	store, err := postgres.Open(t.Context(), pgpool.At(rig.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	settings := drainer.Settings{Worker: patientLease, Once: true}
	daemon := drainer.New(store, []dispatch.Provider{(&scripted{}).as("sim", 1)}, settings, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	ctx, cancel := context.WithTimeout(t.Context(), drainertest.Patience)
	defer cancel()
	if err := daemon.Run(ctx); err != nil || ctx.Err() != nil {
		t.Errorf("%v, %v; want it to end by itself: nothing is due", err, ctx.Err())
	}
}

func TestARowThatBreaksTheAdapterEndsAndShutsNobodyOff(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	poison := &scripted{answer: func(int64) dispatch.Result { panic("poison") }}
	provider := poison.as("sim", 8)
	provider.Tools["act"] = quickPolicy(dispatch.NaturallyIdempotent, 4)
	rig.EnqueueSteps("sim/act", 0, 1)
	launch(t, rig.URL, provider)
	rig.AwaitStatus("unknown", 1)
	if sent := poison.requests.Load(); sent != 4 {
		t.Errorf("sent %d times, want its four tries", sent)
	}
	if state := harness.Stored[string](rig, `SELECT state FROM outbox.provider WHERE name = 'sim'`); state != "closed" {
		t.Errorf("the breaker is %s: it was the adapter that broke, not the provider", state)
	}
}

func TestAnOutageDoesNotUseARowUp(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	var down atomic.Bool
	down.Store(true)
	outage := &scripted{answer: func(int64) dispatch.Result {
		if down.Load() {
			return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "dial"}
		}
		return well
	}}
	provider := outage.as("sim", 8)
	provider.Tools["act"] = quickPolicy(dispatch.KeyIdempotent, 8)
	rig.EnqueueSteps("sim/act", 0, 1)
	launch(t, rig.URL, provider)
	drainertest.Eventually(t, "it was tried far more often than it has tries", func() bool { return outage.requests.Load() > 20 })
	down.Store(false)
	rig.AwaitStatus("completed", 1)
	fault.Injected(t, 51, int(outage.requests.Load())-1) // the last request met no outage
}

// shop is a provider with two tools. One of them gets no answer while slow is set.
type shop struct {
	slow               atomic.Bool
	slowSent, wellSent atomic.Int64
}

func (s *shop) Dispatch(_ context.Context, request dispatch.Request) dispatch.Result {
	if request.Tuple.Operation() == "well" {
		s.wellSent.Add(1)
		return well
	}
	s.slowSent.Add(1)
	if s.slow.Load() {
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "timeout"}
	}
	return well
}

// till is a separate adapter for each configuration. All of them share the shop.
type till struct{ *shop }

func (s *shop) provider() dispatch.Provider {
	return dispatch.Provider{
		Name: "sim", Adapter: &till{s}, Concurrency: 8, Timeout: drainertest.Patience,
		Breaker: dispatch.BreakerPolicy{FailureRate: 0.5, Window: time.Minute, MinimumIntents: 10, ConsecutiveFailures: 5, CoolDown: 50 * time.Millisecond},
		Tools: map[string]dispatch.Policy{
			"slow": quickPolicy(dispatch.KeyIdempotent, 1000), "well": quickPolicy(dispatch.KeyIdempotent, 5),
		},
	}
}

func TestOneSlowIntentShutsNothing(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	s := &shop{}
	s.slow.Store(true)
	rig.EnqueueSteps("sim/slow", 0, 1)
	launch(t, rig.URL, s.provider())
	drainertest.Eventually(t, "the slow intent is retried many times", func() bool { return s.slowSent.Load() > 20 })
	rig.EnqueueSteps("sim/well", 1, 10)
	rig.AwaitStatus("completed", 9)
	shut := harness.Stored[int](rig, `SELECT (SELECT count(*) FROM outbox.provider WHERE shut_at IS NOT NULL)
		+ (SELECT count(*) FROM outbox.tool WHERE shut_at IS NOT NULL)`)
	if shut != 0 {
		t.Errorf("%d breakers are open", shut)
	}
	s.slow.Store(false)
	rig.AwaitStatus("completed", 10)
}

func TestASlowToolWaitsAndItsNeighbourDoesNot(t *testing.T) {
	t.Parallel()
	const intents = 40
	rig := harness.Plain(t, nil)
	s := &shop{}
	s.slow.Store(true)
	rig.EnqueueSteps("sim/slow", 0, intents)
	rig.EnqueueSteps("sim/well", intents, intents+1)
	launch(t, rig.URL, s.provider())
	reloaded := launch(t, rig.URL, s.provider())
	drainertest.Eventually(t, "the slow tool is shut, and its rows are parked", func() bool {
		drainertest.AssertInvariant(t, rig.DB)
		return harness.Stored[bool](rig, `SELECT EXISTS (SELECT FROM outbox.tool WHERE name = 'sim/slow' AND state <> 'closed' AND reason = 'failure_rate')
			AND (SELECT count(*) FROM outbox.queue WHERE provider = 'sim/slow') > 30`)
	})
	rig.EnqueueSteps("sim/well", intents+1, 2*intents)
	rig.AwaitStatus("completed", intents)
	if state := harness.Stored[string](rig, `SELECT state FROM outbox.provider WHERE name = 'sim'`); state != "closed" {
		t.Errorf("the provider is %s: its neighbour had to wait", state)
	}
	if err := reloaded.Reload([]dispatch.Provider{s.provider()}, nil); err != nil {
		t.Fatal(err)
	}
	probes := s.slowSent.Load()
	drainertest.Eventually(t, "it is tried again and again", func() bool { return s.slowSent.Load() > probes+3 })
	if state := harness.Stored[string](rig, `SELECT state FROM outbox.tool WHERE name = 'sim/slow'`); state == "closed" {
		t.Error("a reload opened what is still slow")
	}
	s.slow.Store(false)
	rig.AwaitStatus("completed", 2*intents)
	if parked := harness.Stored[int](rig, `SELECT count(*) FROM outbox.queue`); parked != 0 {
		t.Errorf("%d rows are left", parked)
	}
}

// undeliverable has no destination for the step "bad" of the slow tool. Until it is repaired, it has none for any
// step of this tool.
type undeliverable struct {
	shop
	repaired atomic.Bool
}

func (u *undeliverable) Dispatch(_ context.Context, request dispatch.Request) dispatch.Result {
	if request.Tuple.Operation() == "slow" && (request.Tuple.StepID == "bad" || !u.repaired.Load()) {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unroutable", OfOperation: true}
	}
	return well
}

// All other rows have failed more often than the row that cannot be sent.
func TestOneRowWithoutADestinationDoesNotKeepItsOperationShut(t *testing.T) {
	t.Parallel()
	const intents = 8
	rig := harness.Plain(t, nil)
	u := &undeliverable{}
	provider := u.provider()
	provider.Adapter = u
	provider.Breaker.CoolDown = 600 * time.Millisecond // long enough for the row that tried to be parked again
	rig.EnqueueSteps("sim/slow", 0, intents)
	launch(t, rig.URL, provider)
	drainertest.Eventually(t, "the operation is shut", func() bool {
		return harness.Stored[bool](rig, `SELECT EXISTS (SELECT FROM outbox.tool WHERE name = 'sim/slow' AND state <> 'closed' AND reason = 'failure_rate')`)
	})
	rig.Exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('other', 'bad', 'sim/slow', 's', '{}')`)
	tried := harness.Stored[int](rig, `SELECT count(*)::int FROM outbox.attempt WHERE error = 'unroutable'`)
	drainertest.Eventually(t, "all others have failed a few times", func() bool {
		rig.Exec(`UPDATE outbox.queue SET tries = 3 WHERE provider = 'sim/slow' AND tries < 3 AND intent_id <> (SELECT id FROM outbox.intent WHERE step_id = 'bad')`)
		return harness.Stored[int](rig, `SELECT count(*)::int FROM outbox.attempt WHERE error = 'unroutable'`) > tried+2 &&
			harness.Stored[int](rig, `SELECT count(*)::int FROM outbox.queue WHERE tries >= 3 AND intent_id <> (SELECT id FROM outbox.intent WHERE step_id = 'bad')`) == intents
	})
	u.repaired.Store(true)
	rig.AwaitStatus("completed", intents)
}

func TestWhatWasClaimedAheadGoesBackWhenTheGateShuts(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	hang := make(chan struct{})
	busy := &scripted{answer: func(n int64) dispatch.Result {
		if n > 40 {
			<-hang
		}
		return well
	}}
	rig.EnqueueSteps("sim/act", 0, 400)
	launch(t, rig.URL, busy.as("sim", 2))
	defer close(hang)
	drainertest.Eventually(t, "both slots hang", func() bool { return busy.requests.Load() == 42 })
	rig.Exec(`UPDATE outbox.provider SET paused = true WHERE name = 'sim'`)
	drainertest.Eventually(t, "only what was sent is in progress", func() bool { return rig.CountStatus("in_progress") == 2 })
}

func TestStoppedRowsHideNoOthers(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	rig.EnqueueSteps("sim/act", 0, 60)
	rig.Exec(`INSERT INTO outbox.saga (agent_run_id) VALUES ('run-1')`)
	rig.Exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('run-2', 'step', 'sim/act', 'order', '{}')`)
	drainOnce(t, rig.URL, (&scripted{}).as("sim", 8))
	if cancelled, completed := rig.CountStatus("cancelled"), rig.CountStatus("completed"); cancelled != 60 || completed != 1 {
		t.Errorf("%d cancelled and %d completed, want the 60 of the closed run and the other's one", cancelled, completed)
	}
}

// crowd is a provider that counts its concurrent requests.
type crowd struct {
	mu      sync.Mutex
	present int
	most    int
	sent    int
	leave   chan struct{} // closed to release all requests; if nil, no request is held
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

// fleet starts daemons that begin to work when each of them knows all others. They learn of one another and of the
// end of the pause in the same poll.
func fleet(t *testing.T, rig *harness.Rig, size int, provider dispatch.Provider) {
	t.Helper()
	rig.Exec(`INSERT INTO outbox.provider (name, paused) VALUES ($1, true)`, provider.Name)
	for range size {
		launch(t, rig.URL, provider)
	}
	drainertest.Eventually(t, fmt.Sprintf("%d workers have joined", size), func() bool {
		return harness.Stored[int](rig, `SELECT count(*) FROM outbox.worker`) == size
	})
	rig.Exec(`UPDATE outbox.provider SET paused = false`)
}

func TestTheFleetKeepsTheProvidersConcurrency(t *testing.T) {
	t.Parallel()
	const limit, workers, intents = 10, 3, 200
	rig := harness.Plain(t, nil)
	c := &crowd{leave: make(chan struct{})}
	provider := dispatch.Provider{
		Name: "sim", Adapter: c, Concurrency: limit, Timeout: drainertest.Patience,
		Tools: map[string]dispatch.Policy{"act": quickPolicy(dispatch.KeyIdempotent, 5)},
	}
	rig.EnqueueSteps("sim/act", 0, intents)
	fleet(t, rig, workers, provider)
	drainertest.Eventually(t, "every worker has its share and the provider is full", func() bool {
		return harness.Stored[int](rig, `SELECT count(DISTINCT worker_id) FROM outbox.claim`) == workers && c.mostAtOnce() >= limit
	})
	if claimed := harness.Stored[int](rig, `SELECT sum(cardinality(intent_ids)) FROM outbox.claim`); claimed != limit {
		t.Errorf("the workers took %d rows together, want %d", claimed, limit)
	}
	close(c.leave)
	rig.AwaitStatus("completed", intents)
	if most := c.mostAtOnce(); most != limit {
		t.Errorf("%d dispatches were under way at once, want %d", most, limit)
	}
	drainertest.AssertInvariant(t, rig.DB)
}

func TestTheFleetKeepsTheProvidersRate(t *testing.T) {
	t.Parallel()
	const workers, intents = 3, 60
	limit := dispatch.RateLimit{PerSecond: 100, Burst: 10}
	rig := harness.Plain(t, nil)
	provider := dispatch.Provider{
		Name: "sim", Adapter: &crowd{}, Concurrency: 32, Timeout: drainertest.Patience, RateLimit: limit,
		Tools: map[string]dispatch.Policy{"act": quickPolicy(dispatch.KeyIdempotent, 5)},
	}
	fleet(t, rig, workers, provider)
	began := time.Now()
	rig.EnqueueSteps("sim/act", 0, intents)
	rig.AwaitStatus("completed", intents)
	least := time.Duration(float64(intents-limit.Burst-workers) / limit.PerSecond * float64(time.Second))
	if took := time.Since(began); took < least {
		t.Errorf("%d dispatches took %s, at %v a second they take at least %s", intents, took, limit.PerSecond, least)
	}
}

// withBackup returns the rig's provider with a sensitive breaker, and a fallback that never fails.
func withBackup(rig *harness.Rig) (providers []dispatch.Provider, backup *dispatchtest.SimulatedProvider) {
	rig.T.Helper()
	backup, backupURL := dispatchtest.NewProvider(rig.T, nil)
	for _, setup := range []providerSetup{simOf(rig, dispatch.KeyIdempotent), {
		Name: "backup", BaseURL: backupURL, Class: dispatch.KeyIdempotent, Concurrency: 8, MaxAttempts: 20, Timeout: drainertest.Patience,
	}} {
		providers = append(providers, setup.build(rig.T))
	}
	providers[0].Breaker = dispatch.BreakerPolicy{ConsecutiveFailures: 3, CoolDown: 50 * time.Millisecond}
	providers[0].Fallback = "backup"
	return providers, backup
}

func TestAFallbackServesWithTheSameKeys(t *testing.T) {
	t.Parallel()
	const intents = 100
	rig := harness.Plain(t, func(string, int) dispatchtest.Fault { return dispatchtest.Overloaded })
	providers, backup := withBackup(rig)
	rig.EnqueueSteps("sim/act", 0, intents)
	launch(t, rig.URL, providers...)
	rig.AwaitStatus("completed", intents)

	for key, effects := range backup.Ledger.Audit().Effects {
		if effects != 1 {
			t.Errorf("the fallback had %d effects under one key", effects)
		}
		if known := harness.Stored[int](rig, `SELECT count(*) FROM outbox.status WHERE idempotency_key = $1`, key); known != 1 {
			t.Error("the fallback was called with a key that is no intent's")
		}
	}
	if effects := rig.Provider.Ledger.Audit().TotalEffects(); effects != 0 {
		t.Errorf("the overloaded provider had %d effects", effects)
	}
	served := harness.Stored[int](rig, `SELECT count(DISTINCT intent_id) FROM outbox.attempt WHERE served_by = 'backup' AND outcome = 'completed'`)
	if served != intents {
		t.Errorf("%d intents are recorded as served by the fallback, want all %d", served, intents)
	}
}

func TestAFallbackNeverGetsWhatMayHaveBeenApplied(t *testing.T) {
	t.Parallel()
	const intents = 30
	var well atomic.Bool
	rig := harness.Plain(t, func(_ string, request int) dispatchtest.Fault {
		switch {
		case request == 1:
			return dispatchtest.ErrorAfter // each request has its effect, but the daemon cannot know it
		case well.Load():
			return dispatchtest.None
		}
		return dispatchtest.Overloaded
	})
	providers, backup := withBackup(rig)
	rig.EnqueueSteps("sim/act", 0, intents)
	launch(t, rig.URL, providers...)
	drainertest.Eventually(t, "the breaker is open and everything is in doubt", func() bool {
		return harness.Stored[int](rig, `SELECT count(*) FROM outbox.queue WHERE maybe_applied`) == intents &&
			harness.Stored[string](rig, `SELECT state FROM outbox.provider WHERE name = 'sim'`) != "closed"
	})
	well.Store(true)
	rig.AwaitStatus("completed", intents)
	rig.AssertOneEffectEach()
	if requests := backup.Ledger.Audit().TotalRequests(); requests != 0 {
		t.Errorf("the fallback got %d requests for effects that its principal may have had", requests)
	}
}
