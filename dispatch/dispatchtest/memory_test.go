package dispatchtest_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

func TestAKeyIsForgottenAfterItsTime(t *testing.T) {
	t.Parallel()
	var now atomic.Pointer[time.Time]
	set := func(at time.Time) { now.Store(&at) }
	start := time.Now()
	set(start)
	provider := &dispatchtest.SimulatedProvider{
		Ledger: dispatchtest.NewLedger(), KeyTTL: time.Hour, Now: func() time.Time { return *now.Load() },
	}
	baseURL := dispatchtest.Serve(t, provider)
	for _, step := range []struct {
		at      time.Duration
		replay  string
		effects int
	}{
		{0, "", 1},
		{time.Hour - 1, "true", 1},
		{time.Hour, "", 2},
		{2*time.Hour - 1, "true", 2}, // remembered anew
		{2 * time.Hour, "", 3},
	} {
		set(start.Add(step.at))
		got := post(t, baseURL, "k", "{}").header.Get("Idempotency-Replay")
		if effects := provider.Ledger.Audit().Effects["k"]; got != step.replay || effects != step.effects {
			t.Errorf("after %s: replay %q and %d effects, want %q and %d", step.at, got, effects, step.replay, step.effects)
		}
	}
}

func TestASavedErrorIsReplayedEvenByARestartedProvider(t *testing.T) {
	t.Parallel()
	for fault, effects := range map[dispatchtest.Fault]int{
		dispatchtest.SavedErrorBefore: 0, dispatchtest.SavedErrorAfter: 1, dispatchtest.ErrorForGood: 1,
	} {
		path := filepath.Join(t.TempDir(), "ledger.jsonl")
		first := post(t, serveLedger(t, path, dispatchtest.Script(fault)), "k", "{}")
		if first.status != 500 || first.header.Get("Idempotency-Replay") != "" {
			t.Errorf("%s: first %+v", fault, first)
		}
		if final := first.header.Get("Stripe-Should-Retry"); (final == "false") != (fault == dispatchtest.ErrorForGood) {
			t.Errorf("%s: Stripe-Should-Retry is %q", fault, final)
		}
		again := post(t, serveLedger(t, path, nil), "k", "{}")
		if again.status != 500 || again.body != first.body || again.header.Get("Idempotency-Replay") != "true" {
			t.Errorf("%s: again %+v, want a replay of %+v", fault, again, first)
		}
		ledger, err := dispatchtest.ReadLedger(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := ledger.Audit().Effects["k"]; got != effects {
			t.Errorf("%s: %d effects, want %d", fault, got, effects)
		}
	}
}

func serveLedger(t *testing.T, path string, plan dispatchtest.Plan) string {
	t.Helper()
	ledger, err := dispatchtest.OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ledger.Close() })
	return dispatchtest.Serve(t, &dispatchtest.SimulatedProvider{Ledger: ledger, Plan: plan})
}

func TestAnErrorInPlaceOfAReplayIsNone(t *testing.T) {
	t.Parallel()
	_, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(dispatchtest.None, dispatchtest.ErrorAfter))
	for i, want := range []struct {
		status int
		replay string
	}{{200, ""}, {500, ""}, {200, "true"}} {
		got := post(t, baseURL, "k", "{}")
		if replay := got.header.Get("Idempotency-Replay"); got.status != want.status || replay != want.replay {
			t.Errorf("request %d: status %d, replay %q, want %+v", i+1, got.status, replay, want)
		}
	}
}

func TestWhatIsSetAlreadyHasNoEffectAgainAndReadingHasNone(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger(), IgnoreKeys: true}
	baseURL := dispatchtest.Serve(t, provider)
	for _, step := range []struct {
		method, body string
		effects      int
	}{
		{http.MethodGet, "", 0},
		{http.MethodPut, "on", 1},
		{http.MethodPut, "on", 1},
		{http.MethodGet, "", 1},
		{http.MethodPut, "off", 2},
	} {
		got := send(t, step.method, baseURL+"/v1/lamp", "k", step.body)
		if effects := provider.Ledger.Audit().Effects["k"]; got.status != 200 || effects != step.effects {
			t.Errorf("%s %s: %+v and %d effects, want %d", step.method, strings.TrimSpace(step.body), got, effects, step.effects)
		}
	}
}

func TestWhoIgnoresKeysSavesNoErrorUnderThem(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost} {
		baseURL := dispatchtest.Serve(t, &dispatchtest.SimulatedProvider{
			Ledger: dispatchtest.NewLedger(), Plan: dispatchtest.Script(dispatchtest.SavedErrorAfter), IgnoreKeys: true,
		})
		for i, want := range []int{500, 200} {
			if got := send(t, method, baseURL+"/v1/lamp", "k", ""); got.status != want {
				t.Errorf("%s %d: %+v, want status %d", method, i+1, got, want)
			}
		}
	}
}
