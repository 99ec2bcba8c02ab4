package replay_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/contract/replay"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
)

// tool returns billing/charge at baseURL, as it would be configured.
func tool(t *testing.T, baseURL string, class dispatch.Class, settings string) replay.Subject {
	t.Helper()
	adapter, err := dispatchhttp.New(dispatch.Spec{
		Provider: "billing",
		Timeout:  10 * time.Second,
		Settings: dispatchtest.Block("base_url: " + baseURL),
		Tools:    map[string]dispatch.ToolSpec{"charge": {Class: class, Settings: dispatchtest.Block(settings)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = adapter.Close() })
	return replay.Subject{Tool: "billing/charge", Class: class, Adapter: adapter}
}

const (
	withReference    = "{path: /v1/charges, response: {ref: .id}}"
	withoutReference = "{path: /v1/charges}"
)

var plan = replay.Plan{Payload: json.RawMessage(`{"amount": 1}`), Other: json.RawMessage(`{"amount": 2}`), Concurrent: 8}

func verify(t *testing.T, subject replay.Subject) replay.Report {
	t.Helper()
	report, err := replay.Run(t.Context(), subject, plan)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// verdicts returns the checks in a form that a table can hold.
func verdicts(report replay.Report) string {
	var all []string
	for _, check := range report.Checks {
		all = append(all, check.Name+": "+string(check.Verdict))
		if check.Seen == "" || check.Expected == "" || (check.Verdict != replay.OK && check.Advice == "") {
			all = append(all, "(half a check)")
		}
	}
	return strings.Join(all, ", ")
}

func TestAProviderIsHeldToTheClassOfItsTool(t *testing.T) {
	t.Parallel()
	honest := &dispatchtest.SimulatedProvider{}
	for name, test := range map[string]struct {
		provider *dispatchtest.SimulatedProvider
		wrap     func(http.Handler) http.Handler
		class    dispatch.Class
		settings string
		passed   bool
		verdicts string
		effects  int
	}{
		"an honest one": {
			honest, asItIs, dispatch.KeyIdempotent, withReference, true,
			"first call: ok, same call again: ok, replay marker: ok, same body: ok, another payload: ok, calls at once: ok, provider references: ok", 2,
		},
		"an honest one without a reference": {
			honest, asItIs, dispatch.KeyIdempotent, withoutReference, true,
			"first call: ok, same call again: ok, replay marker: ok, same body: ok, another payload: ok, calls at once: ok, provider references: warning", 2,
		},
		"one that ignores keys": {
			&dispatchtest.SimulatedProvider{IgnoreKeys: true}, asItIs, dispatch.KeyIdempotent, withReference, false,
			"first call: ok, same call again: failed, replay marker: warning, same body: failed, another payload: failed, calls at once: failed, provider references: failed", 11,
		},
		"one that ignores keys, without a reference": {
			&dispatchtest.SimulatedProvider{IgnoreKeys: true}, asItIs, dispatch.KeyIdempotent, withoutReference, false,
			"first call: ok, same call again: failed, replay marker: warning, same body: failed, another payload: failed, calls at once: failed, provider references: warning", 11,
		},
		"one that marks no replay": {
			honest, withoutMarker, dispatch.KeyIdempotent, withReference, true,
			"first call: ok, same call again: ok, replay marker: warning, same body: ok, another payload: ok, calls at once: ok, provider references: ok", 2,
		},
		"one that answers each time in other words": {
			honest, withChangingBody, dispatch.KeyIdempotent, withReference, false,
			"first call: ok, same call again: ok, replay marker: ok, same body: failed, another payload: ok, calls at once: ok, provider references: ok", 2,
		},
		"one that calls every refusal busy": {
			honest, withRetryAfter, dispatch.KeyIdempotent, withReference, false,
			"first call: ok, same call again: ok, replay marker: ok, same body: ok, another payload: failed, calls at once: ok, provider references: ok", 2,
		},
		"one that refuses": {
			honest, refusing, dispatch.KeyIdempotent, withReference, false,
			"first call: failed", 0,
		},
		"a read": {
			&dispatchtest.SimulatedProvider{IgnoreKeys: true}, asItIs, dispatch.ReadOnly, withoutReference, true,
			"first call: ok, same call again: ok", 2,
		},
		"what is called naturally idempotent and makes something new": {
			&dispatchtest.SimulatedProvider{IgnoreKeys: true}, asItIs, dispatch.NaturallyIdempotent, withReference, false,
			"first call: ok, same call again: failed, calls at once: failed, provider references: failed", 10,
		},
		"what is called naturally idempotent and names nothing": {
			&dispatchtest.SimulatedProvider{IgnoreKeys: true}, asItIs, dispatch.NaturallyIdempotent, withoutReference, true,
			"first call: ok, same call again: ok, calls at once: warning, provider references: warning", 10,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ledger := dispatchtest.NewLedger()
			provider := &dispatchtest.SimulatedProvider{Ledger: ledger, IgnoreKeys: test.provider.IgnoreKeys}
			report := verify(t, tool(t, dispatchtest.Serve(t, test.wrap(provider)), test.class, test.settings))
			if got := verdicts(report); got != test.verdicts || report.Passed != test.passed {
				t.Errorf("passed is %v, %s\nwant      %v, %s\n%+v", report.Passed, got, test.passed, test.verdicts, report)
			}
			if got := ledger.Audit().TotalEffects(); got != test.effects {
				t.Errorf("%d effects, want %d", got, test.effects)
			}
		})
	}
}

func asItIs(provider http.Handler) http.Handler { return provider }

func withoutMarker(provider http.Handler) http.Handler {
	return rewriting(provider, func(recorded *httptest.ResponseRecorder, _ int64) {
		recorded.Header().Del("Idempotency-Replay")
	})
}

func withChangingBody(provider http.Handler) http.Handler {
	return rewriting(provider, func(recorded *httptest.ResponseRecorder, number int64) {
		recorded.Body.WriteString(strings.Repeat(" ", int(number)))
	})
}

func withRetryAfter(provider http.Handler) http.Handler {
	return rewriting(provider, func(recorded *httptest.ResponseRecorder, _ int64) {
		recorded.Header().Set("Retry-After", "1")
	})
}

func refusing(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
}

// rewriting changes every answer of the provider. number counts the answers from 1.
func rewriting(provider http.Handler, change func(recorded *httptest.ResponseRecorder, number int64)) http.Handler {
	var number atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recorded := httptest.NewRecorder()
		provider.ServeHTTP(recorded, r)
		change(recorded, number.Add(1))
		for name, values := range recorded.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(recorded.Code)
		_, _ = w.Write(recorded.Body.Bytes())
	})
}

func TestNothingIsTakenForARecognisedKeyWithoutProof(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger()}
	report := verify(t, tool(t, dispatchtest.Serve(t, withoutMarker(provider)), dispatch.KeyIdempotent, withoutReference))
	if check := report.Checks[1]; report.Passed || check.Verdict != replay.Failed || !strings.Contains(check.Advice, "set http.response.ref") {
		t.Errorf("got %+v", check)
	}
}

// The provider holds its first answer back until it has told the other calls to wait, so that the calls do overlap.
func TestCallsAtOnceAreToldToWait(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger()}
	holding := &holding{provider: provider}
	provider.Plan = func(string, int) dispatchtest.Fault {
		if holding.together.Load() {
			return dispatchtest.HangAfter
		}
		return dispatchtest.None
	}
	holding.Adapter = tool(t, dispatchtest.Serve(t, provider), dispatch.KeyIdempotent, withReference).Adapter
	t.Cleanup(provider.Release)
	report := verify(t, replay.Subject{Tool: "billing/charge", Class: dispatch.KeyIdempotent, Adapter: holding})
	check := report.Checks[5]
	if !report.Passed || check.Seen != "1 × completed, HTTP 200; 7 × in_flight, HTTP 409" {
		t.Errorf("got %+v", check)
	}
}

// holding releases the provider when all calls at once are answered, except for the one that the provider holds.
type holding struct {
	dispatch.Adapter
	provider *dispatchtest.SimulatedProvider
	together atomic.Bool
	answered atomic.Int64
}

func (h *holding) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	together := request.Tuple.StepID == "together"
	h.together.Store(together)
	result := h.Adapter.Dispatch(ctx, request)
	if together && h.answered.Add(1) == int64(plan.Concurrent-1) {
		h.provider.Release()
	}
	return result
}

// The test replaces honest answers by answers that no simulated provider gives.
func TestStrangeAnswersAreNotTakenForAPromiseKept(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		calls   func(call int64) bool // the calls with strange answers: 1 is the first, 2 its repetition, 3 the other payload
		strange dispatch.Result
		check   int
		verdict replay.Verdict
		says    string
	}{
		"a refused payload":        {only(1), dispatch.Result{Outcome: dispatch.Rejected, HTTPStatus: 422}, 0, replay.Failed, "give a payload that the provider accepts"},
		"throttled":                {only(1), dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 503}, 0, replay.NoVerdict, "not available; try again"},
		"out of reach":             {only(1), dispatch.Result{Outcome: dispatch.NotSent}, 0, replay.NoVerdict, "not available; try again"},
		"no answer":                {only(1), dispatch.Result{Outcome: dispatch.Ambiguous}, 0, replay.NoVerdict, "not available; try again"},
		"busy with a fresh key":    {only(1), dispatch.Result{Outcome: dispatch.InFlight}, 0, replay.NoVerdict, "not available; try again"},
		"a replay of a fresh key":  {only(1), dispatch.Result{Outcome: dispatch.Completed, Replayed: true, ProviderRef: "eff_1"}, 0, replay.Failed, "takes different keys for one"},
		"a repetition refused":     {only(2), dispatch.Result{Outcome: dispatch.Rejected, HTTPStatus: 409}, 1, replay.Failed, "not understood as a success"},
		"another payload ignored":  {only(3), dispatch.Result{Outcome: dispatch.Completed, Replayed: true}, 4, replay.Warning, "answers for the first payload"},
		"another payload busy":     {only(3), dispatch.Result{Outcome: dispatch.InFlight}, 4, replay.Failed, "again and again"},
		"another payload in doubt": {only(3), dispatch.Result{Outcome: dispatch.Ambiguous}, 4, replay.Failed, "shows nothing"},
		"all asked to wait":        {from(4), dispatch.Result{Outcome: dispatch.InFlight, HTTPStatus: 409}, 5, replay.Failed, "none succeeded"},
		"one refused":              {only(7), dispatch.Result{Outcome: dispatch.Rejected, HTTPStatus: 409}, 5, replay.Failed, "must be read as in_flight"},
		"one throttled":            {only(7), dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 429}, 5, replay.Warning, "show nothing"},
		"no body to compare":       {func(call int64) bool { return call <= 2 }, dispatch.Result{Outcome: dispatch.Completed, Replayed: true}, 3, replay.Skipped, "nothing to compare"},
		"two without a proof":      {from(10), dispatch.Result{Outcome: dispatch.Completed}, 5, replay.Failed, "two effects look alike"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, baseURL := dispatchtest.NewProvider(t, nil)
			subject := tool(t, baseURL, dispatch.KeyIdempotent, withReference)
			strange := &strange{Adapter: subject.Adapter, calls: test.calls, result: test.strange}
			subject.Adapter = strange
			report := verify(t, subject)
			check := report.Checks[test.check]
			if check.Verdict != test.verdict || !strings.Contains(check.Advice, test.says) || report.Passed != (test.verdict == replay.Warning) ||
				report.Unavailable() != (test.verdict == replay.NoVerdict) {
				t.Errorf("passed is %v, unavailable %v, %+v; want %s, %q", report.Passed, report.Unavailable(), check, test.verdict, test.says)
			}
			if test.check == 0 && test.strange.Outcome != dispatch.Completed && (len(report.Checks) != 1 || strange.made.Load() != 1) {
				t.Errorf("after a first call that shows nothing it made %d calls and tells of %+v", strange.made.Load(), report.Checks)
			}
		})
	}
}

func only(call int64) func(int64) bool { return func(c int64) bool { return c == call } }
func from(call int64) func(int64) bool { return func(c int64) bool { return c >= call } }

// strange answers some calls itself.
type strange struct {
	dispatch.Adapter
	calls  func(int64) bool
	result dispatch.Result
	made   atomic.Int64
}

func (s *strange) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	if s.calls(s.made.Add(1)) {
		return s.result
	}
	return s.Adapter.Dispatch(ctx, request)
}

func TestANonIdempotentToolIsNeverCalled(t *testing.T) {
	t.Parallel()
	provider, baseURL := dispatchtest.NewProvider(t, nil)
	_, err := replay.Run(t.Context(), tool(t, baseURL, dispatch.NonIdempotent, withReference), plan)
	if !errors.Is(err, replay.ErrNothingPromised) || provider.Ledger.Audit().TotalRequests() != 0 {
		t.Errorf("got %v after %d requests", err, provider.Ledger.Audit().TotalRequests())
	}
}

func TestEachRunHasKeysOfItsOwn(t *testing.T) {
	t.Parallel()
	provider, baseURL := dispatchtest.NewProvider(t, nil)
	subject := tool(t, baseURL, dispatch.KeyIdempotent, withReference)
	for range 2 {
		if report := verify(t, subject); !report.Passed {
			t.Fatalf("got %+v", report)
		}
	}
	if audit := provider.Ledger.Audit(); len(audit.Effects) != 4 || audit.TotalEffects() != 4 {
		t.Errorf("%d effects under %d keys, want 4 under 4", audit.TotalEffects(), len(audit.Effects))
	}
}
