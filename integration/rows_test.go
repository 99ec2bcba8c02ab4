package integration_test

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/pgproxy"
)

func TestARowOfAnUnknownOperationWaitsAndHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	rig.EnqueueSteps("sim/misspelt", 0, 1)
	rig.EnqueueSteps("sim/act", 1, 2)
	start(t, setupOf(rig, dispatch.KeyIdempotent, patientLease))
	rig.AwaitStatus("completed", 1)
	drainertest.Eventually(t, "the unknown one is parked", func() bool {
		return harness.Stored[int](rig, `SELECT count(*) FROM outbox.queue WHERE provider = 'sim/misspelt' AND tries = 0`) == 1
	})
	if attempts := harness.Stored[int](rig, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'released'`); attempts != 0 {
		t.Errorf("%d attempts are on record of a row that was never sent", attempts)
	}
	rig.AssertOneEffectEach()
}

func TestARowOfAnUnconfiguredProviderStaysUntouched(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	rig.EnqueueSteps("other/act", 0, 1)
	rig.EnqueueSteps("sim/act", 1, 2)
	daemon := start(t, setupOf(rig, dispatch.KeyIdempotent, patientLease))
	rig.AwaitStatus("completed", 1)
	daemon.Terminate()
	if untouched := harness.Stored[int](rig, `SELECT count(*) FROM outbox.queue WHERE provider = 'other' AND attempt = 0`); untouched != 1 {
		t.Error("the row was touched")
	}
	drainertest.AssertInvariant(t, rig.DB)
}

func TestALaneThatHangsDoesNotStopAnother(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, func(string, int) dispatchtest.Fault { return dispatchtest.HangBefore })
	healthy, healthyURL := dispatchtest.NewProvider(t, nil)
	rig.EnqueueSteps("sim/act", 0, 50)
	rig.EnqueueSteps("healthy/act", 50, 550)
	with := setupOf(rig, dispatch.KeyIdempotent, patientLease)
	other := simOf(rig, dispatch.KeyIdempotent)
	other.Name, other.BaseURL = "healthy", healthyURL
	with.Providers = append(with.Providers, other)
	start(t, with)
	rig.AwaitStatus("completed", 500)
	if audit := healthy.Ledger.Audit(); audit.TotalEffects() != 500 || audit.DuplicateEffects() != 0 {
		t.Errorf("%d effects, %d of them twice", audit.TotalEffects(), audit.DuplicateEffects())
	}
	if effects := rig.Provider.Ledger.Audit().TotalEffects(); effects != 0 {
		t.Errorf("the hanging provider had %d effects", effects)
	}
	rig.Provider.Release()
	rig.AwaitStatus("completed", 550)
}

func TestARowThatIsNotDueYetIsNotSent(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	const later = 2 * time.Second
	due := harness.Stored[time.Time](rig, `WITH e AS (SELECT * FROM outbox.enqueue('run', 'step', 'sim/act', 'scope', '{}', now() + $1::float8 * interval '1 second'))
		SELECT now() + $1::float8 * interval '1 second' FROM e`, later.Seconds())
	start(t, setupOf(rig, dispatch.KeyIdempotent, patientLease))
	rig.AwaitStatus("completed", 1)
	if started := harness.Stored[time.Time](rig, `SELECT started_at FROM outbox.attempt`); started.Before(due) {
		t.Errorf("sent %s too early", due.Sub(started))
	}
}

const waits = `SELECT count(*) = 1 FROM outbox.provider WHERE name = 'sim' AND idle_until > now() + interval '1 second'`

func TestAnIdleLaneIsWokenByAnEnqueue(t *testing.T) {
	t.Parallel()
	const times, rounds = 15, 6
	rig := harness.Plain(t, nil)
	line := pgproxy.New(t, rig.URL)
	with := setupOf(rig, dispatch.KeyIdempotent, patientLease)
	with.DatabaseURL = line.Behind(t, rig.URL)
	start(t, with)
	// Polling alone takes 125 ms at the median. A slow machine makes both slower by the same time.
	var woken, polled pickUps
	for range rounds {
		line.DropNotifications.Store(false)
		woken.sample(rig, times)
		line.DropNotifications.Store(true)
		polled.sample(rig, times)
		if woken.median() < polled.median()-60*time.Millisecond {
			break
		}
	}
	drainertest.Eventually(t, "each enqueue of an idle lane notifies it", func() bool { return int(line.Notifications.Load()) >= len(woken)+len(polled) })
	if woken.median() >= polled.median()-60*time.Millisecond {
		t.Errorf("the median pick-up took %s, and %s without notifications: polling found the rows", woken.median(), polled.median())
	}
}

// pickUps are durations from the commit to the request.
type pickUps []time.Duration

// sample enqueues rows one by one while the lane waits.
func (p *pickUps) sample(rig *harness.Rig, n int) {
	rig.T.Helper()
	for range n {
		done := rig.Provider.Ledger.Audit().TotalRequests()
		rig.AwaitStatus("completed", done)
		// After a row a lane polls often for 10 ms, and would find the next row without a wake-up.
		rested := time.Now().Add(50 * time.Millisecond)
		drainertest.Eventually(rig.T, "the lane waits for rows, and does not look often any more", func() bool {
			return time.Now().After(rested) && harness.Stored[bool](rig, waits)
		})
		rig.EnqueueSteps("sim/act", done, done+1)
		committed := time.Now()
		rig.AwaitRequests(done + 1)
		*p = append(*p, time.Since(committed))
	}
}

func (p pickUps) median() time.Duration { return slices.Sorted(slices.Values(p))[len(p)/2] }

// odd is an adapter that misbehaves at every tenth intent.
type odd struct {
	misbehave func() dispatch.Result
}

func (o odd) Dispatch(_ context.Context, request dispatch.Request) dispatch.Result {
	var payload struct{ N int }
	if err := json.Unmarshal(request.Payload, &payload); err != nil {
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "payload"}
	}
	if payload.N%10 == 0 {
		return o.misbehave()
	}
	return dispatch.Result{Outcome: dispatch.Completed, Response: json.RawMessage(`{"id": "good"}`)}
}

func (o odd) provider(class dispatch.Class) dispatch.Provider {
	return dispatch.Provider{
		Name: "sim", Adapter: o, Concurrency: 4, Timeout: drainertest.Patience,
		Tools: map[string]dispatch.Policy{"act": quickPolicy(class, 2)},
	}
}

func TestAResponseThatCannotBeStoredIsLeftOut(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	rig.EnqueueSteps("sim/act", 0, 100)
	drainOnce(t, rig.URL, odd{func() dispatch.Result {
		return dispatch.Result{Outcome: dispatch.Completed, Response: json.RawMessage("{\"id\": \"\\u0000\"}")}
	}}.provider(dispatch.KeyIdempotent))
	drainertest.AssertInvariant(t, rig.DB)
	if got := rig.CountStatus("completed"); got != 100 {
		t.Errorf("%d completed, want all 100", got)
	}
	if kept := harness.Stored[int](rig, `SELECT count(*) FROM outbox.status WHERE response ->> 'id' = 'good'`); kept != 90 {
		t.Errorf("%d good responses are kept, want 90", kept)
	}
	if noted := harness.Stored[int](rig, `SELECT count(*) FROM outbox.status WHERE response IS NULL AND last_error = 'unstorable_response'`); noted != 10 {
		t.Errorf("%d intents say why their response is missing, want 10", noted)
	}
	rig.AssertNoClaims()
}

func TestAnAdapterThatPanicsIsAmbiguous(t *testing.T) {
	t.Parallel()
	for class, want := range map[dispatch.Class]int{dispatch.KeyIdempotent: 20, dispatch.NonIdempotent: 10} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			rig := harness.Plain(t, nil)
			rig.EnqueueSteps("sim/act", 0, 100)
			daemon := odd{func() dispatch.Result { panic("broken") }}.provider(class)
			// A run with --once ends when no row is due, and a retry may become due later.
			for rig.CountStatus("pending") > 0 {
				drainOnce(t, rig.URL, daemon)
			}
			panics := harness.Stored[int](rig, `SELECT count(*) FROM outbox.attempt WHERE error = 'panic'`)
			fault.Injected(t, 15, panics)
			drainertest.AssertInvariant(t, rig.DB)
			if done, unknown := rig.CountStatus("completed"), rig.CountStatus("unknown"); done != 90 || unknown != 10 {
				t.Errorf("%d completed and %d unknown, want 90 and 10", done, unknown)
			}
			if panics != want {
				t.Errorf("%d attempts panicked, want %d", panics, want)
			}
		})
	}
}

const keyTTL = time.Hour

// forgetful returns a provider that forgets its keys. There is no limit of attempts, and no circuit breaker.
func forgetful(rig *harness.Rig) dispatch.Provider {
	rig.T.Helper()
	rig.Provider.KeyTTL = keyTTL
	setup := simOf(rig, dispatch.KeyIdempotent)
	setup.KeyTTL, setup.MaxAttempts = keyTTL, math.MaxInt
	setup.Breaker = dispatch.BreakerPolicy{ConsecutiveFailures: math.MaxInt}
	return setup.build(rig.T)
}

func TestAKeyThatTheProviderMayHaveForgottenIsNotSentAgain(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, dispatchtest.Always(dispatchtest.DropAfter))
	var passed atomic.Int64 // time since the first request, by the provider's clock
	rig.Provider.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	rig.EnqueueSteps("sim/act", 0, 1)
	launch(t, rig.URL, forgetful(rig))
	rig.AwaitRequests(2)
	drainertest.Eventually(t, "half of the key's life is over between two sends", func() bool {
		aged, err := rig.DB.Exec(context.Background(), `UPDATE outbox.queue SET first_attempt_at = now() - make_interval(secs => $1)`, keyTTL.Seconds()/2)
		return err == nil && aged.RowsAffected() == 1
	})
	requests := rig.Provider.Ledger.Audit().TotalRequests()
	rig.AwaitStatus("unknown", 1)
	fault.Injected(t, 43, rig.CountStatus("unknown"))
	assertOneIncident(rig)

	key := harness.Stored[string](rig, `SELECT idempotency_key FROM outbox.status`)
	if audit := rig.Provider.Ledger.Audit(); audit.Requests[key] != requests || audit.Effects[key] != 1 {
		t.Errorf("%d requests and %d effects, want %d and one", audit.Requests[key], audit.Effects[key], requests)
	}
	passed.Store(int64(keyTTL))
	sendAgain(rig, key)
	if effects := rig.Provider.Ledger.Audit().Effects[key]; effects != 2 {
		t.Errorf("%d effects after the provider forgot the key and had one request more, want 2", effects)
	}
}

func TestARowInDoubtThatWaitedPastItsKeyIsNotSent(t *testing.T) {
	t.Parallel()
	rig := harness.Plain(t, nil)
	rig.EnqueueSteps("sim/act", 0, 1)
	if _, err := rig.DB.Exec(context.Background(), `UPDATE outbox.queue SET tries = 1, maybe_applied = true,
		first_attempt_at = now() - make_interval(secs => $1)`, keyTTL.Seconds()); err != nil {
		t.Fatal(err)
	}
	drainOnce(t, rig.URL, forgetful(rig))
	fault.Injected(t, 43, 1)
	if got := rig.CountStatus("unknown"); got != 1 {
		t.Errorf("%d intents are unknown, want 1", got)
	}
	assertOneIncident(rig)
	if requests := rig.Provider.Ledger.Audit().TotalRequests(); requests != 0 {
		t.Errorf("%d requests, want none", requests)
	}
}

func assertOneIncident(rig *harness.Rig) {
	rig.T.Helper()
	drainertest.AssertInvariant(rig.T, rig.DB)
	if got := harness.Stored[int](rig, `SELECT count(*) FROM outbox.incident WHERE kind = 'outcome_unknown' AND acknowledged_at IS NULL`); got != 1 {
		rig.T.Errorf("%d incidents are open, want 1", got)
	}
}

// sendAgain does what the drainer must not do: it sends one more request under the key, with the payload of the first
// intent.
func sendAgain(rig *harness.Rig, key string) {
	rig.T.Helper()
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, rig.BaseURL+"/v1/act", strings.NewReader(`{"n": 0}`))
	if err != nil {
		rig.T.Fatal(err)
	}
	request.Header.Set("Idempotency-Key", key)
	request.GetBody = nil // otherwise the client repeats the request
	if response, err := http.DefaultClient.Do(request); err == nil {
		response.Body.Close()
	}
}
