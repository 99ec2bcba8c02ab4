package integration_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/integration/fault"
)

// scripted is a provider that answers the n-th request as it is told.
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

func (s *scripted) as(name string, concurrency int) drainer.Provider {
	return drainer.Provider{
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

// elder is a worker that comes first in the order of shares.
const elder = "00000000-0000-0000-0000-000000000001"

func (w *world) join(worker, provider string) {
	w.t.Helper()
	w.exec(`INSERT INTO outbox.worker (worker_id, providers, beat_at) VALUES ($1, ARRAY[$2], now() + interval '1 hour')`, worker, provider)
}

func TestAFallbackThatNothingElseUsesIsTriedAgain(t *testing.T) {
	t.Parallel()
	const intents = 30
	w := newWorld(t, nil)
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
	w.exec(`INSERT INTO outbox.provider (name) VALUES ('backup')`)
	w.enqueue("sim/act", 0, intents)
	launch(t, w.url, own, backup.as("backup", 8))
	drainertest.Eventually(t, "the fallback's breaker is open", func() bool {
		return stored[string](w, `SELECT state FROM outbox.provider WHERE name = 'backup'`) != "closed"
	})
	down.Store(false)
	w.awaitCount("completed", intents)
}

func TestRowsInDoubtAtAFallbackDoNotWaitForTheirOwnProvider(t *testing.T) {
	t.Parallel()
	const intents = 10
	w := newWorld(t, nil)
	backup := &scripted{answer: func(n int64) dispatch.Result {
		if n <= intents {
			return doubtful
		}
		return well
	}}
	own := (&scripted{answer: always(overload)}).as("sim", 8)
	own.Fallback = "backup"
	w.enqueue("sim/act", 0, intents)
	launch(t, w.url, own, backup.as("backup", 8))
	w.awaitCount("completed", intents)
}

func TestAWorkerWithoutAShareGivesBackWhatItHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	provider := &scripted{}
	w.enqueue("sim/act", 0, 2000)
	launch(t, w.url, provider.as("sim", 1))
	drainertest.Eventually(t, "it drains", func() bool { return provider.requests.Load() > 20 })
	w.join(elder, "sim")
	drainertest.Eventually(t, "it holds no row any more, and takes none", func() bool {
		return stored[int](w, `SELECT count(*) FROM outbox.claim`) == 0
	})
	w.exec(`DELETE FROM outbox.worker WHERE worker_id = $1`, elder)
	w.awaitCount("completed", 2000)
}

func TestAWorkerThatServesOtherProvidersTakesNoShare(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.join(elder, "other")
	w.enqueue("sim/act", 0, 5)
	launch(t, w.url, (&scripted{}).as("sim", 1))
	w.awaitCount("completed", 5)
}

func TestDrainingOnceWithoutAShareEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.join(elder, "sim")
	store, err := postgres.Open(t.Context(), w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	settings := drainer.Settings{Worker: patientLease, Once: true}
	daemon := drainer.New(store, []drainer.Provider{(&scripted{}).as("sim", 1)}, settings, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	ctx, cancel := context.WithTimeout(t.Context(), drainertest.Patience)
	defer cancel()
	if err := daemon.Run(ctx); err != nil || ctx.Err() != nil {
		t.Errorf("%v, %v; want it to end by itself: nothing is due", err, ctx.Err())
	}
}

func TestARowThatBreaksTheAdapterEndsAndShutsNobodyOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	poison := &scripted{answer: func(int64) dispatch.Result { panic("poison") }}
	provider := poison.as("sim", 8)
	provider.Tools["act"] = quickPolicy(dispatch.NaturallyIdempotent, 4)
	w.enqueue("sim/act", 0, 1)
	launch(t, w.url, provider)
	w.awaitCount("unknown", 1)
	if sent := poison.requests.Load(); sent != 4 {
		t.Errorf("sent %d times, want its four tries", sent)
	}
	if state := stored[string](w, `SELECT state FROM outbox.provider WHERE name = 'sim'`); state != "closed" {
		t.Errorf("the breaker is %s: it was the adapter that broke, not the provider", state)
	}
}

func TestAnOutageDoesNotUseARowUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
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
	w.enqueue("sim/act", 0, 1)
	launch(t, w.url, provider)
	drainertest.Eventually(t, "it was tried far more often than it has tries", func() bool { return outage.requests.Load() > 20 })
	down.Store(false)
	w.awaitCount("completed", 1)
	fault.Injected(t, 51, int(outage.requests.Load())-1) // the last one met no outage
}

func TestWhatWasClaimedAheadGoesBackWhenTheGateShuts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	hang := make(chan struct{})
	busy := &scripted{answer: func(n int64) dispatch.Result {
		if n > 40 {
			<-hang
		}
		return well
	}}
	w.enqueue("sim/act", 0, 400)
	launch(t, w.url, busy.as("sim", 2))
	defer close(hang)
	drainertest.Eventually(t, "both slots hang", func() bool { return busy.requests.Load() == 42 })
	w.exec(`UPDATE outbox.provider SET paused = true WHERE name = 'sim'`)
	drainertest.Eventually(t, "only what was sent is in progress", func() bool { return w.count("in_progress") == 2 })
}

func TestStoppedRowsHideNoOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.enqueue("sim/act", 0, 60)
	w.exec(`INSERT INTO outbox.saga (agent_run_id) VALUES ('run-1')`)
	w.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('run-2', 'step', 'sim/act', 'order', '{}')`)
	drainOnce(t, w.url, (&scripted{}).as("sim", 8))
	if cancelled, completed := w.count("cancelled"), w.count("completed"); cancelled != 60 || completed != 1 {
		t.Errorf("%d cancelled and %d completed, want the 60 of the closed run and the other's one", cancelled, completed)
	}
}
