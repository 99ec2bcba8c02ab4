package integration_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainer"
)

// withBackup is the world's provider with a quick breaker and a fallback that
// never fails.
func (w *world) withBackup() (providers []drainer.Provider, backup *dispatchtest.SimulatedProvider) {
	w.t.Helper()
	backup, backupURL := dispatchtest.NewProvider(w.t, nil)
	for _, setup := range []providerSetup{w.sim(dispatch.KeyIdempotent), {
		Name: "backup", BaseURL: backupURL, Class: dispatch.KeyIdempotent, Concurrency: 8, MaxAttempts: 20, Timeout: drainertest.Patience,
	}} {
		provider, err := setup.build(func(adapter dispatch.Adapter) dispatch.Adapter { return adapter })
		if err != nil {
			w.t.Fatal(err)
		}
		providers = append(providers, provider)
	}
	providers[0].Breaker = dispatch.BreakerPolicy{ConsecutiveFailures: 3, CoolDown: 50 * time.Millisecond}
	providers[0].Fallback = "backup"
	return providers, backup
}

func TestAFallbackServesWithTheSameKeys(t *testing.T) {
	t.Parallel()
	const intents = 100
	w := newWorld(t, func(string, int) dispatchtest.Fault { return dispatchtest.Overloaded })
	providers, backup := w.withBackup()
	w.enqueue("sim/act", 0, intents)
	launch(t, w.url, providers...)
	w.awaitCount("completed", intents)

	for key, effects := range backup.Ledger.Audit().Effects {
		if effects != 1 {
			t.Errorf("the fallback had %d effects under one key", effects)
		}
		if known := stored[int](w, `SELECT count(*) FROM outbox.status WHERE idempotency_key = $1`, key); known != 1 {
			t.Error("the fallback was called with a key that is no intent's")
		}
	}
	if effects := w.provider.Ledger.Audit().TotalEffects(); effects != 0 {
		t.Errorf("the overloaded provider had %d effects", effects)
	}
	served := stored[int](w, `SELECT count(DISTINCT intent_id) FROM outbox.attempt WHERE served_by = 'backup' AND outcome = 'completed'`)
	if served != intents {
		t.Errorf("%d intents are recorded as served by the fallback, want all %d", served, intents)
	}
}

func TestAFallbackNeverGetsWhatMayHaveBeenApplied(t *testing.T) {
	t.Parallel()
	const intents = 30
	var well atomic.Bool
	w := newWorld(t, func(_ string, request int) dispatchtest.Fault {
		switch {
		case request == 1:
			return dispatchtest.ErrorAfter // each has its effect, and the caller cannot know
		case well.Load():
			return dispatchtest.None
		}
		return dispatchtest.Overloaded
	})
	providers, backup := w.withBackup()
	w.enqueue("sim/act", 0, intents)
	launch(t, w.url, providers...)
	drainertest.Eventually(t, "the breaker is open and everything is in doubt", func() bool {
		return stored[int](w, `SELECT count(*) FROM outbox.queue WHERE maybe_applied`) == intents &&
			stored[string](w, `SELECT state FROM outbox.provider WHERE name = 'sim'`) != "closed"
	})
	well.Store(true)
	w.awaitCount("completed", intents)
	w.assertOneEffectEach()
	if requests := backup.Ledger.Audit().TotalRequests(); requests != 0 {
		t.Errorf("the fallback got %d requests for effects that its principal may have had", requests)
	}
}
