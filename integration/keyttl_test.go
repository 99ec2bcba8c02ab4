package integration_test

import (
	"context"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

const shortTTL = 2 * time.Second

// forgetful is a provider whose answers are lost and whose keys are forgotten.
func forgetful(w *world) drainer.Provider {
	w.t.Helper()
	w.provider.KeyTTL = shortTTL
	setup := w.sim(dispatch.KeyIdempotent)
	setup.KeyTTL, setup.MaxAttempts = shortTTL, math.MaxInt
	setup.Breaker = dispatch.BreakerPolicy{ConsecutiveFailures: math.MaxInt}
	provider, err := setup.build(func(a dispatch.Adapter) dispatch.Adapter { return a })
	if err != nil {
		w.t.Fatal(err)
	}
	return provider
}

func TestAKeyThatTheProviderMayHaveForgottenIsNotSentAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dispatchtest.Always(dispatchtest.DropAfter))
	w.enqueue("sim/act", 0, 1)
	launch(t, w.url, forgetful(w))
	w.awaitCount("unknown", 1)
	fault.Injected(t, 43, w.count("unknown"))
	w.assertOneIncident()

	key := stored[string](w, `SELECT idempotency_key FROM outbox.status`)
	if audit := w.provider.Ledger.Audit(); audit.Requests[key] < 2 || audit.Effects[key] != 1 {
		t.Errorf("%d requests and %d effects, want retries and one effect", audit.Requests[key], audit.Effects[key])
	}
	sending := stored[float64](w, `SELECT extract(epoch FROM max(started_at) - min(started_at))::float8 FROM outbox.attempt WHERE outcome = 'ambiguous'`)
	if sending >= shortTTL.Seconds()/2 {
		t.Errorf("it was sent for %.1f s, want less than half of the key's %s", sending, shortTTL)
	}
	drainertest.Eventually(t, "the provider forgets, and one request more is one effect more", func() bool {
		w.sendAgain(key)
		return w.provider.Ledger.Audit().Effects[key] == 2
	})
}

func TestARowInDoubtThatWaitedPastItsKeyIsNotSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.enqueue("sim/act", 0, 1)
	if _, err := w.db.Exec(context.Background(), `UPDATE outbox.queue SET tries = 1, maybe_applied = true,
		first_attempt_at = now() - make_interval(secs => $1)`, shortTTL.Seconds()); err != nil {
		t.Fatal(err)
	}
	drainOnce(t, w.url, forgetful(w))
	fault.Injected(t, 43, 1)
	if got := w.count("unknown"); got != 1 {
		t.Errorf("%d intents are unknown, want 1", got)
	}
	w.assertOneIncident()
	if requests := w.provider.Ledger.Audit().TotalRequests(); requests != 0 {
		t.Errorf("%d requests, want none", requests)
	}
}

func (w *world) assertOneIncident() {
	w.t.Helper()
	drainertest.AssertInvariant(w.t, w.db)
	if got := stored[int](w, `SELECT count(*) FROM outbox.incident WHERE kind = 'outcome_unknown' AND acknowledged_at IS NULL`); got != 1 {
		w.t.Errorf("%d incidents wait for somebody, want 1", got)
	}
}

// sendAgain is what the drainer must not do: one more request under the key,
// with the payload of the first intent.
func (w *world) sendAgain(key string) {
	w.t.Helper()
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, w.baseURL+"/v1/act", strings.NewReader(`{"n": 0}`))
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set("Idempotency-Key", key)
	request.GetBody = nil // else the client sends it twice
	if response, err := http.DefaultClient.Do(request); err == nil {
		response.Body.Close()
	}
}
