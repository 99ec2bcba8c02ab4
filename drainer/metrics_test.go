package drainer

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
)

// observing returns an observer that logs into said, without times.
func observing(providers ...dispatch.Provider) (o *observer, said *bytes.Buffer) {
	said = &bytes.Buffer{}
	log := slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	return newObserver(providers, false, log, prometheus.NewRegistry()), said
}

func TestEachChangeOfAGateIsALine(t *testing.T) {
	t.Parallel()
	o, said := observing(dispatch.Provider{Name: "sim"})
	b := threeStrikes()
	for _, step := range []struct {
		gate Gate
		want string
	}{
		{Gate{Breaker: BreakerClosed}, ""},
		{Gate{Breaker: BreakerOpen, Reason: Overloaded, OpenFor: 10 * time.Second}, `level=WARN msg="circuit breaker open" provider=sim reason=overload open_for_seconds=10` + "\n"},
		{Gate{Breaker: BreakerOpen, OpenFor: 9 * time.Second}, ""},
		{Gate{Breaker: BreakerHalfOpen, Reason: Overloaded, OpenFor: time.Second}, `level=WARN msg="circuit breaker half open" provider=sim reason=overload open_for_seconds=1` + "\n"},
		{Gate{Breaker: BreakerClosed, Paused: true}, `level=WARN msg="provider paused" provider=sim` + "\n" + `level=WARN msg="circuit breaker closed" provider=sim reason="" open_for_seconds=0` + "\n"},
		{Gate{Breaker: BreakerClosed}, `level=WARN msg="provider resumed" provider=sim` + "\n"},
	} {
		said.Reset()
		step.gate.Name = "sim"
		o.gate(b.applyGate(step.gate), step.gate)
		if said.String() != step.want {
			t.Errorf("%+v: it says\n%swant\n%s", step.gate, said, step.want)
		}
	}
}

func TestOnlyWhatNobodyWillFindOutIsAnError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		decision dispatch.Decision
		want     string
	}{
		{dispatch.Decision{Status: dispatch.StatusCompleted}, "INFO"},
		{dispatch.Decision{Status: dispatch.StatusPending}, "INFO"},
		{dispatch.Decision{Status: dispatch.StatusFailed}, "WARN"},
		{dispatch.Decision{Status: dispatch.StatusUnknown, Lookup: true}, "WARN"},
		{dispatch.Decision{Status: dispatch.StatusUnknown}, "ERROR"},
	} {
		o, said := observing(dispatch.Provider{Name: "sim"})
		row := &Row{Tuple: dispatch.Tuple{ToolName: "sim/act"}}
		o.attempted(&Settlement{Row: row, Decision: test.decision}, "act")
		if !strings.HasPrefix(said.String(), "level="+test.want+" msg=attempt ") {
			t.Errorf("%+v: it says %swant %s", test.decision, said, test.want)
		}
	}
}

// The attempt still has one line, but the line is a warning.
func TestAWaitThatIsNotBelievedIsLogged(t *testing.T) {
	t.Parallel()
	policy := dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour, MaxAttempts: 3, MaxWait: time.Hour}
	result := dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 429, RetryAfter: 2 * time.Hour}
	o, said := observing(dispatch.Provider{Name: "sim"})
	row := &Row{Tries: 1, Tuple: dispatch.Tuple{ToolName: "sim/act"}}
	o.attempted(&Settlement{Row: row, Result: result, Decision: policy.Decide(row.History(time.Time{}, time.Now()), result, 0)}, "act")
	if line := said.String(); !strings.HasPrefix(line, "level=WARN msg=attempt ") || !strings.Contains(line, "asked_to_wait_us=7200000000 retry_in_us=3600000000") {
		t.Errorf("it says %s", line)
	}
	said.Reset()
	policy.MaxWait = 2 * time.Hour
	o.attempted(&Settlement{Row: row, Result: result, Decision: policy.Decide(row.History(time.Time{}, time.Now()), result, 0)}, "act")
	if line := said.String(); !strings.HasPrefix(line, "level=INFO ") || strings.Contains(line, "asked_to_wait") {
		t.Errorf("of a wait that is believed it says %s", line)
	}
}

func TestAnAttemptHasOneLine(t *testing.T) {
	t.Parallel()
	started := time.Now()
	row := &Row{IntentID: 7, Attempt: 2, Tuple: dispatch.Tuple{ToolName: "sim/act"}, Via: "spare", Lookup: true}
	o, said := observing(dispatch.Provider{Name: "sim"}, dispatch.Provider{Name: "spare"})
	o.attempted(&Settlement{
		Row: row, StartedAt: started, FinishedAt: started.Add(1500 * time.Microsecond),
		Result:   dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 429, ErrorClass: "http_429", Replayed: true, ProviderRef: "r1"},
		Decision: dispatch.Decision{Status: dispatch.StatusPending, Delay: 2 * time.Second},
	}, "find")
	want := "level=INFO msg=attempt provider=spare operation=find outcome=throttled status=pending intent_id=7 attempt=2 idempotency_key=" +
		row.Tuple.IdempotencyKey() + " took_us=1500 lookup=true http_status=429 error=http_429 replayed=true provider_ref=r1 retry_in_us=2000000\n"
	if said.String() != want {
		t.Errorf("it says\n%swant\n%s", said, want)
	}
}

// A row that was given back, or never reached its provider, had no first attempt yet.
func TestAReplayForAnIntentsFirstAttemptIsCountedAndIsOfInterest(t *testing.T) {
	t.Parallel()
	sent, undone := time.Now(), int64(1)
	replay := dispatch.Result{Outcome: dispatch.Completed, Replayed: true}
	for name, test := range map[string]struct {
		row    Row
		result dispatch.Result
		first  bool
	}{
		"its first attempt":          {Row{Attempt: 1}, replay, true},
		"given back before":          {Row{Attempt: 4, Tries: 1}, replay, true},
		"the first of a new key":     {Row{Attempt: 4, Key: dispatch.Qualifiers{Generation: 2}}, replay, true},
		"sent before":                {Row{Attempt: 2, FirstAttemptAt: &sent}, replay, false},
		"lost with its worker":       {Row{Attempt: 2, FirstAttemptAt: &sent, MaybeApplied: true}, replay, false},
		"a duplicate is accepted":    {Row{Attempt: 4, MaybeApplied: true}, replay, false},
		"a lookup":                   {Row{Attempt: 1, Lookup: true}, replay, false},
		"an undo":                    {Row{Attempt: 1, Undoes: &undone}, replay, false},
		"no replay":                  {Row{Attempt: 1}, dispatch.Result{Outcome: dispatch.Completed}, false},
		"a replay that is no effect": {Row{Attempt: 1}, dispatch.Result{Outcome: dispatch.Rejected, Replayed: true}, false},
	} {
		o, _ := observing(dispatch.Provider{Name: "sim"})
		test.row.Tuple = dispatch.Tuple{ToolName: "sim/act"}
		for _, opens := range []bool{true, false} {
			policy := dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour, MaxAttempts: 3, FirstReplayOpens: opens}
			s := &Settlement{Row: &test.row, StartedAt: sent, FinishedAt: sent, Result: test.result}
			s.Decision = policy.Decide(test.row.History(sent, sent), test.result, 0)
			s.setConsequences(policy)
			o.attempted(s, "act")
			if s.Foreign != (test.first && opens) {
				t.Errorf("%s, opens %t: it is an incident: %t", name, opens, s.Foreign)
			}
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(o.metrics.firstReplays)
		counted := values(t, registry)
		if want := map[bool]float64{true: 2}[test.first]; counted["first_replays_total sim"] != want {
			t.Errorf("%s: counted %v, want %v", name, counted, want)
		}
	}
}

func TestWhatEndsAfterItsProviderWasTakenOutIsCountedUnderItsName(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	o := newObserver([]dispatch.Provider{{Name: "sim"}}, false, slog.New(slog.DiscardHandler), registry)
	ended := &Settlement{Row: &Row{Tuple: dispatch.Tuple{ToolName: "sim/act"}}, Result: dispatch.Result{Outcome: dispatch.Completed}, Decision: dispatch.Decision{Status: dispatch.StatusCompleted}}
	o.attempted(ended, "act")
	o.serve([]dispatch.Provider{{Name: "another"}})
	o.attempted(ended, "act")
	for range scrapers { // the first scrapes show an attempt's series as 0
		values(t, registry)
	}
	got := values(t, registry)
	for series, want := range map[string]float64{
		"dispatch_attempts_total act completed sim": 2, "settled_total sim completed": 1, "settled_total unconfigured completed": 1,
	} {
		if got[series] != want {
			t.Errorf("%s is %v, want %v", series, got[series], want)
		}
	}
}

// The fleet reports nothing more about an operation that was removed while its breaker was open.
func TestWhatAnEarlierSessionSawShutIsNotShownAsShut(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	o := newObserver([]dispatch.Provider{{Name: "sim"}, {Name: "other"}}, false, slog.New(slog.DiscardHandler), registry)
	for _, operation := range []string{"sim/act", "other/act"} {
		o.operationGate(Gate{Name: operation}, Gate{Name: operation, Breaker: BreakerOpen})
	}
	isShown := func(provider string) bool {
		return slices.Contains(gauges(t, registry)[provider], "drainer_operation_circuit_breaker_open")
	}
	if !isShown("sim") || !isShown("other") {
		t.Fatal("what is shut is not shown")
	}
	o.concealShutOperations(map[string]*upstream{"sim": nil})
	if isShown("sim") || !isShown("other") {
		t.Errorf("the provider of the new session is shown: %t, the other one: %t", isShown("sim"), isShown("other"))
	}
}

// gauges returns the providers of each gauge that has series by provider.
func gauges(t *testing.T, registry *prometheus.Registry) map[string][]string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string][]string{}
	for _, family := range families {
		if family.GetType().String() != "GAUGE" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "provider" && !slices.Contains(shown[label.GetValue()], family.GetName()) {
					shown[label.GetValue()] = append(shown[label.GetValue()], family.GetName())
				}
			}
		}
	}
	return shown
}

func TestGaugesOfAProviderThatIsNoLongerConfiguredDoNotLie(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	kept, removed := dispatch.Provider{Name: "kept"}, dispatch.Provider{Name: "removed"}
	o := newObserver([]dispatch.Provider{kept, removed}, false, slog.New(slog.DiscardHandler), registry)
	o.claimed("removed", 1)
	o.gate(Gate{}, Gate{Name: "removed", Breaker: BreakerClosed})

	o.serve([]dispatch.Provider{kept})
	if got := gauges(t, registry)["removed"]; !slices.Equal(got, []string{"drainer_in_flight", "drainer_lane_stalled"}) {
		t.Errorf("while it drains it is shown by %v, want only what is in flight and whether that can end", got)
	}
	o.ended("removed", 1)
	o.forget([]dispatch.Provider{kept, removed})
	if got := gauges(t, registry); got["removed"] != nil || len(got["kept"]) == 0 {
		t.Errorf("after it drained the gauges are %v", got)
	}
}

func TestAProviderThatCameBackWhileItDrainedIsShown(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	sim := []dispatch.Provider{{Name: "sim"}}
	o := newObserver(sim, false, slog.New(slog.DiscardHandler), registry)
	before := gauges(t, registry)["sim"]
	o.serve(nil)
	o.serve(sim)
	o.forget(sim) // the first session has drained
	if got := gauges(t, registry)["sim"]; !slices.Equal(got, before) {
		t.Errorf("it is shown by %v, want %v", got, before)
	}
}

// values returns the value of each counter and gauge, by its name and its labels' values.
func values(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "drainer_")
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			shown[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return shown
}

func TestAnIntentCountsAsSettledOnceNoAttemptFollows(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	o := newObserver([]dispatch.Provider{{Name: "sim"}}, false, slog.New(slog.DiscardHandler), registry)
	for _, status := range settledStatuses {
		if zero, is := values(t, registry)["settled_total sim "+string(status)]; !is || zero != 0 {
			t.Errorf("%s begins at %v (%v), want 0", status, zero, is)
		}
	}
	row := &Row{Tuple: dispatch.Tuple{ToolName: "sim/act"}}
	for _, decision := range []dispatch.Decision{
		{Status: dispatch.StatusPending},
		{Status: dispatch.StatusUnknown, Lookup: true},
		{Status: dispatch.StatusCompleted},
		{Status: dispatch.StatusFailed},
	} {
		o.attempted(&Settlement{Row: row, Decision: decision}, "act")
	}
	o.recovered([]Settlement{{Row: row, Decision: dispatch.Decision{Status: dispatch.StatusUnknown}}})
	o.attempted(&Settlement{Row: &Row{Tuple: dispatch.Tuple{ToolName: "canary/act"}}, Decision: dispatch.Decision{Status: dispatch.StatusFailed}}, "act")
	got := values(t, registry)
	for series, want := range map[string]float64{"sim completed": 1, "sim failed": 1, "sim unknown": 1, "unconfigured failed": 1} {
		if got["settled_total "+series] != want {
			t.Errorf("%s is %v, want %v", series, got["settled_total "+series], want)
		}
	}
}

func TestHistogramsHaveTheirNativeFormWhereTheFileSaysSo(t *testing.T) {
	t.Parallel()
	for _, native := range []bool{true, false} {
		registry := prometheus.NewRegistry()
		o := newObserver([]dispatch.Provider{{Name: "sim"}}, native, slog.New(slog.DiscardHandler), registry)
		o.committed(time.Second, nil)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			histogram := family.GetMetric()[0].GetHistogram()
			if histogram == nil {
				continue
			}
			if got := histogram.Schema != nil; got != native {
				t.Errorf("%s has a native form: %v, want %v", family.GetName(), got, native)
			}
			if len(histogram.GetBucket()) < 15 {
				t.Errorf("%s has lost its buckets", family.GetName())
			}
		}
	}
}

func TestWhatIsConfiguredAndWhatIsShutIsShown(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	o := newObserver([]dispatch.Provider{{Name: "sim", Concurrency: 8, Timeout: 30 * time.Second}}, false, slog.New(slog.DiscardHandler), registry)
	o.gate(Gate{}, Gate{Name: "sim", Breaker: BreakerClosed, Paused: true})
	o.committed(time.Second, nil)
	o.committed(time.Second, context.DeadlineExceeded)
	got := values(t, registry)
	for series, want := range map[string]float64{
		"provider_concurrency sim": 8, "provider_timeout_seconds sim": 30, "provider_paused sim": 1, "batch_failures_total": 1,
	} {
		if got[series] != want {
			t.Errorf("%s is %v, want %v", series, got[series], want)
		}
	}
	o.gate(Gate{Paused: true}, Gate{Name: "sim", Breaker: BreakerClosed})
	if values(t, registry)["provider_paused sim"] != 0 {
		t.Error("a provider that was resumed is still shown as paused")
	}
	o.serve([]dispatch.Provider{{Name: "sim", Concurrency: 4, Timeout: time.Second}})
	if got := values(t, registry)["provider_concurrency sim"]; got != 4 {
		t.Errorf("after a reload the concurrency is %v, want 4", got)
	}
}

func TestTheFirstIncreaseOfAToolIsSeen(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	o := newObserver([]dispatch.Provider{{Name: "sim", Tools: map[string]dispatch.Policy{"act": {}}}}, false, slog.New(slog.DiscardHandler), registry)
	count := func(outcome dispatch.Outcome) {
		o.attempted(&Settlement{Row: &Row{Tuple: dispatch.Tuple{ToolName: "sim/act"}}, Result: dispatch.Result{Outcome: outcome}}, "act")
	}
	const rejected, completed = "dispatch_attempts_total act rejected sim", "dispatch_attempts_total act completed sim"
	if _, there := values(t, registry)[completed]; there {
		t.Error("there is a series of a tool that was not used")
	}
	count(dispatch.Rejected)
	count(dispatch.Rejected)
	for _, want := range []float64{0, 0, 2} { // two scrapers take turns
		got := values(t, registry)
		if done, there := got[completed]; got[rejected] != want || !there || done != 0 {
			t.Errorf("a scrape shows %v and %v (%t), want %v and 0", got[rejected], done, there, want)
		}
	}
	count(dispatch.Rejected)
	if got := values(t, registry)[rejected]; got != 3 {
		t.Errorf("later it shows %v, want 3", got)
	}
}
