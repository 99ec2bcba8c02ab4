package drainer

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	agentTrace   = "4bf92f3577b34da6a3ce929d0e0e4736"
	agentSpanID  = "00f067aa0ba902b7"
	traceparent  = "00-" + agentTrace + "-" + agentSpanID + "-01"
	unsampled    = "00-" + agentTrace + "-" + agentSpanID + "-00"
	canonicalKey = "traceparent"
)

// recording returns a tracing and the recorder of all its ended spans.
func recording(options ...sdktrace.TracerProviderOption) (*tracing, *tracetest.SpanRecorder) {
	ended := tracetest.NewSpanRecorder()
	return newTracing(sdktrace.NewTracerProvider(append(options, sdktrace.WithSpanProcessor(ended))...)), ended
}

func tracedRow(headers map[string]string) *Row {
	return &Row{
		IntentID: 7, Attempt: 1, Tries: 1, ClaimedAt: time.Now(), SinceEnqueue: time.Minute, SinceDue: time.Second,
		Tuple:   dispatch.Tuple{AgentRunID: "run", StepID: "step", ToolName: "sim/act", BusinessScope: "scope"},
		Headers: headers,
	}
}

func TestTheProviderGetsTheTraceContinuedBelowTheDispatch(t *testing.T) {
	t.Parallel()
	never := sdktrace.WithSampler(sdktrace.NeverSample())
	for name, test := range map[string]struct {
		sampler sdktrace.TracerProviderOption
		left    map[string]string
		trace   string // empty for a new one
		sampled bool
		beside  map[string]string // the other headers that the provider gets
	}{
		"of an agent":                        {nil, map[string]string{"traceparent": traceparent}, agentTrace, true, nil},
		"its state and baggage go with it":   {nil, map[string]string{"traceparent": traceparent, "tracestate": "a=1,b=2", "baggage": "k=v"}, agentTrace, true, map[string]string{"tracestate": "a=1,b=2", "baggage": "k=v"}},
		"its state without its spaces":       {nil, map[string]string{"traceparent": traceparent, "tracestate": "a=1, b=2"}, agentTrace, true, map[string]string{"tracestate": "a=1,b=2"}},
		"whatever the case of a name":        {nil, map[string]string{"TraceParent": traceparent, "Tracestate": "a=1"}, agentTrace, true, map[string]string{"tracestate": "a=1"}},
		"of nobody":                          {nil, nil, "", true, nil},
		"an invalid one is ignored":          {nil, map[string]string{"traceparent": "00-zz-1-01", "tracestate": "a=1", "baggage": "k=v"}, "", true, map[string]string{"baggage": "k=v"}},
		"an invalid state is ignored":        {nil, map[string]string{"traceparent": traceparent, "tracestate": "\x00"}, agentTrace, true, nil},
		"nobody's, and not sampled":          {never, map[string]string{"baggage": "k=v"}, "", false, map[string]string{"baggage": "k=v"}},
		"other headers are none of its":      {nil, map[string]string{"x": "y"}, "", true, map[string]string{"x": "y"}},
		"a later version is read as it must": {nil, map[string]string{"traceparent": "cc-" + agentTrace + "-" + agentSpanID + "-01-more"}, agentTrace, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var options []sdktrace.TracerProviderOption
			if test.sampler != nil {
				options = append(options, test.sampler)
			}
			tracing, _ := recording(options...)
			row := tracedRow(test.left)
			before := maps.Clone(test.left)
			ctx, spans := tracing.begin(t.Context(), row, dispatch.Policy{})
			got := spans.continued(row.Headers)

			dispatching := trace.SpanContextFromContext(ctx)
			flags := map[bool]string{true: "-01", false: "-00"}[test.sampled]
			want := "00-" + dispatching.TraceID().String() + "-" + dispatching.SpanID().String() + flags
			if got[canonicalKey] != want {
				t.Errorf("traceparent is %q, want the dispatch's, %q", got[canonicalKey], want)
			}
			if test.trace != "" && dispatching.TraceID().String() != test.trace {
				t.Errorf("the trace is %s, want the agent's", dispatching.TraceID())
			}
			beside := maps.Clone(got)
			delete(beside, canonicalKey)
			if !maps.Equal(beside, test.beside) {
				t.Errorf("beside it goes %v, want %v", beside, test.beside)
			}
			if !maps.Equal(row.Headers, before) {
				t.Errorf("the intent's headers became %v, want %v forever", row.Headers, before)
			}
		})
	}
}

func TestTheAgentsOwnIsPassedOnWhereNoSpanIsRecorded(t *testing.T) {
	t.Parallel()
	sampling, _ := recording()
	never, _ := recording(sdktrace.WithSampler(sdktrace.NeverSample()))
	for name, test := range map[string]struct {
		tracing *tracing
		left    map[string]string
	}{
		"tracing is off":                     {nil, map[string]string{"Traceparent": "no traceparent at all", "tracestate": "a=1, b=2"}},
		"the agent's trace is not sampled":   {sampling, map[string]string{"Traceparent": unsampled, "tracestate": "a=1, b=2"}},
		"nothing is sampled":                 {never, map[string]string{"traceparent": traceparent, "baggage": "k=v"}},
		"tracing is off, and no agent's one": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row := tracedRow(test.left)
			_, spans := test.tracing.begin(t.Context(), row, dispatch.Policy{})
			if got := spans.continued(row.Headers); !maps.Equal(got, test.left) {
				t.Errorf("the provider gets %v, want %v", got, test.left)
			}
		})
	}
}

// traced makes one whole attempt, as a lane does, and returns its spans by phase.
func traced(t *testing.T, row *Row, result dispatch.Result, refused bool) map[string]sdktrace.ReadOnlySpan {
	t.Helper()
	tracing, ended := recording()
	policy := dispatch.Policy{Class: dispatch.KeyIdempotent}
	_, row.spans = tracing.begin(t.Context(), row, policy)
	settlement := Settlement{Row: row, FinishedAt: time.Now(), Result: result, Decision: dispatch.Decision{Status: dispatch.StatusPending}}
	row.spans.dispatched(&settlement)
	if refused {
		row.spans.refused()
	}
	row.spans.settled()
	phases := map[string]sdktrace.ReadOnlySpan{}
	for _, span := range ended.Ended() {
		phase, tool, _ := strings.Cut(span.Name(), " ")
		if tool != "sim/act" || phases[phase] != nil {
			t.Errorf("a span is named %q, want one of each phase with the tool", span.Name())
		}
		phases[phase] = span
	}
	if len(phases) != 3 {
		t.Fatalf("there are %d spans, want 3", len(phases))
	}
	return phases
}

func TestThePhasesOfAnAttemptAreSiblingsUnderTheAgent(t *testing.T) {
	t.Parallel()
	phases := traced(t, tracedRow(map[string]string{"traceparent": traceparent}), dispatch.Result{Outcome: dispatch.Completed}, false)
	for phase, span := range phases {
		if span.Parent().SpanID().String() != agentSpanID || span.SpanContext().TraceID().String() != agentTrace {
			t.Errorf("%s is below %s of %s, want the agent", phase, span.Parent().SpanID(), span.SpanContext().TraceID())
		}
	}
}

func TestWithoutAnAgentsTraceTheWaitBeginsOne(t *testing.T) {
	t.Parallel()
	phases := traced(t, tracedRow(nil), dispatch.Result{Outcome: dispatch.Completed}, false)
	root := phases["wait"]
	if root.Parent().IsValid() {
		t.Errorf("the wait is below %s, want a root", root.Parent().SpanID())
	}
	for _, phase := range []string{"dispatch", "settle"} {
		if phases[phase].Parent().SpanID() != root.SpanContext().SpanID() {
			t.Errorf("%s is not below the wait", phase)
		}
	}
}

func TestAWaitBeginsWhenTheRowWasEnqueuedOrCameDueAgain(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	for name, test := range map[string]struct {
		change func(*Row)
		want   time.Duration
	}{
		"first attempt":              {func(*Row) {}, time.Minute},
		"given back unsent before":   {func(r *Row) { r.Attempt = 5 }, time.Minute},
		"not sent before":            {func(r *Row) { r.Attempt, r.Tries = 2, 2 }, time.Second},
		"retried by an operator":     {func(r *Row) { r.Attempt, r.FirstAttemptAt = 3, &sent }, time.Second},
		"looked up after an attempt": {func(r *Row) { r.Attempt, r.Tries, r.FirstAttemptAt, r.Lookup = 2, 2, &sent, true }, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row := tracedRow(nil)
			test.change(row)
			tracing, ended := recording()
			policy := dispatch.Policy{Lookup: &dispatch.Lookup{Operation: "act"}}
			_, spans := tracing.begin(t.Context(), row, policy)
			spans.dispatched(&Settlement{Row: row, FinishedAt: time.Now()})
			for _, span := range ended.Ended() {
				if waited := span.EndTime().Sub(span.StartTime()); strings.HasPrefix(span.Name(), "wait ") && waited != test.want {
					t.Errorf("it waited for %s, want %s", waited, test.want)
				}
			}
		})
	}
}

func TestASpanSaysHowItsPhaseEnded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		result  dispatch.Result
		lookup  bool
		refused bool
		phase   string
		status  codes.Code
		says    map[string]string
	}{
		"completed":              {dispatch.Result{Outcome: dispatch.Completed, HTTPStatus: 200, Replayed: true}, false, false, "dispatch", codes.Unset, map[string]string{"drainer.outcome": "completed", "http.response.status_code": "200", "drainer.replayed": "true", "drainer.class": "key_idempotent", "drainer.intent_id": "7", "drainer.attempt": "1"}},
		"ambiguous":              {dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "timeout"}, false, false, "dispatch", codes.Error, map[string]string{"drainer.outcome": "ambiguous", "error.type": "timeout"}},
		"absent":                 {dispatch.Result{Outcome: dispatch.Absent}, false, false, "dispatch", codes.Error, nil},
		"a lookup finds nothing": {dispatch.Result{Outcome: dispatch.Absent}, true, false, "dispatch", codes.Unset, map[string]string{"drainer.lookup": "true"}},
		"recorded":               {dispatch.Result{Outcome: dispatch.Rejected}, false, false, "settle", codes.Unset, map[string]string{"drainer.status": "pending"}},
		"lost its lease":         {dispatch.Result{Outcome: dispatch.Completed}, false, true, "settle", codes.Error, map[string]string{"error.type": "lease_lost"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row := tracedRow(nil)
			row.Lookup = test.lookup
			tracing, ended := recording()
			policy := dispatch.Policy{Class: dispatch.KeyIdempotent, Lookup: &dispatch.Lookup{Operation: "find"}}
			_, row.spans = tracing.begin(t.Context(), row, policy)
			settlement := Settlement{Row: row, FinishedAt: time.Now(), Result: test.result, Decision: dispatch.Decision{Status: dispatch.StatusPending}}
			row.spans.dispatched(&settlement)
			if test.refused {
				row.spans.refused()
			}
			row.spans.settled()
			for _, span := range ended.Ended() {
				if !strings.HasPrefix(span.Name(), test.phase+" ") {
					continue
				}
				if span.Status().Code != test.status {
					t.Errorf("its status is %s, want %s", span.Status().Code, test.status)
				}
				said := map[string]string{}
				for _, attribute := range span.Attributes() {
					said[string(attribute.Key)] = attribute.Value.String()
				}
				for key, want := range test.says {
					if said[key] != want {
						t.Errorf("%s is %q, want %q", key, said[key], want)
					}
				}
			}
		})
	}
}

func TestTheSpansOfAnUndoNameTheIntentThatItUndoes(t *testing.T) {
	t.Parallel()
	forward := int64(5)
	for name, undoes := range map[string]*int64{"an undo": &forward, "a step": nil} {
		row := tracedRow(nil)
		row.Undoes = undoes
		for phase, span := range traced(t, row, dispatch.Result{Outcome: dispatch.Completed}, false) {
			named := slices.Contains(span.Attributes(), attribute.Int64("drainer.undoes", forward))
			if named != (undoes != nil) {
				t.Errorf("the %s of %s names what it undoes: %v", phase, name, named)
			}
		}
	}
}

func TestJudgingWhatIsNotSampledAllocatesNothing(t *testing.T) {
	never, _ := recording(sdktrace.WithSampler(sdktrace.NeverSample()))
	_, spans := never.begin(t.Context(), tracedRow(nil), dispatch.Policy{})
	settlement := Settlement{Row: tracedRow(nil), Result: dispatch.Result{Outcome: dispatch.Ambiguous, HTTPStatus: 500, ErrorClass: "http_500"}}
	if allocations := testing.AllocsPerRun(100, func() { judge(spans.dispatch, &settlement) }); allocations != 0 {
		t.Errorf("it allocates %v times for a span that nobody gets", allocations)
	}
}

// A row that is given back was not sent. A wait without a dispatch would show an attempt that did not happen.
func TestWhatWasGivenBackLeavesNoSpan(t *testing.T) {
	t.Parallel()
	tracing, ended := recording()
	row := tracedRow(nil)
	_, row.spans = tracing.begin(t.Context(), row, dispatch.Policy{})
	row.spans.settled()
	if len(ended.Ended()) != 0 {
		t.Errorf("%d spans ended, want none", len(ended.Ended()))
	}
}

// An exemplar links a slow bucket on a dashboard to the trace of a slow attempt.
func TestARecordedTraceIsTheExemplarOfItsBucketAndAnUnrecordedOneIsNot(t *testing.T) {
	t.Parallel()
	recorded, _ := recording()
	never, _ := recording(sdktrace.WithSampler(sdktrace.NeverSample()))
	for name, test := range map[string]struct {
		tracing *tracing
		want    string
	}{"recorded": {recorded, agentTrace}, "not sampled": {never, ""}, "tracing is off": {nil, ""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			sender(test.tracing, registry)()
			exemplars := exemplarsOf(t, registry)
			for _, histogram := range []string{"drainer_dispatch_duration_seconds", "drainer_delivery_latency_seconds"} {
				if got := exemplars[histogram]; got != test.want {
					t.Errorf("%s has the exemplar %q, want %q", histogram, got, test.want)
				}
			}
		})
	}
}

// exemplarsOf returns the traces in the exemplars of histograms.
func exemplarsOf(t *testing.T, registry *prometheus.Registry) map[string]string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	traces := map[string]string{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, bucket := range metric.GetHistogram().GetBucket() {
				for _, label := range bucket.GetExemplar().GetLabel() {
					traces[family.GetName()] += label.GetValue()
				}
			}
		}
	}
	return traces
}

type instant struct{}

func (instant) Dispatch(context.Context, dispatch.Request) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.Completed, HTTPStatus: 200}
}

// sender returns a function that sends one row, through all steps of an attempt.
func sender(tracing *tracing, registry *prometheus.Registry) func() {
	provider := dispatch.Provider{
		Name: "sim", Adapter: instant{}, Concurrency: 1, Timeout: time.Minute,
		Tools: map[string]dispatch.Policy{"act": {Class: dispatch.KeyIdempotent, KeyTTL: time.Hour, MaxAttempts: 3}},
	}
	upstream := newUpstream(provider)
	p := &pool{observer: newObserver([]dispatch.Provider{provider}, false, slog.New(slog.DiscardHandler), registry), tracing: tracing}
	row := tracedRow(map[string]string{"traceparent": traceparent})
	return func() {
		settlement := p.send(context.Background(), upstream, provider.Tools["act"], row)
		settlement.Row.spans.settled()
	}
}

func TestTracingThatIsOffAllocatesNothing(t *testing.T) {
	row := tracedRow(map[string]string{"traceparent": traceparent})
	settlement := Settlement{Row: row}
	var off *tracing
	allocations := testing.AllocsPerRun(100, func() {
		_, row.spans = off.begin(t.Context(), row, dispatch.Policy{})
		_ = row.spans.continued(row.Headers)
		row.spans.dispatched(&settlement)
		row.spans.refused()
		row.spans.settled()
	})
	if allocations != 0 {
		t.Errorf("an attempt allocates %v times for spans that nobody wants", allocations)
	}
}

func BenchmarkSend(b *testing.B) {
	sampled := newTracing(sdktrace.NewTracerProvider())
	dropped := newTracing(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())))
	for _, bench := range []struct {
		name    string
		tracing *tracing
	}{{"off", nil}, {"unsampled", dropped}, {"sampled", sampled}} {
		b.Run(bench.name, func(b *testing.B) {
			send := sender(bench.tracing, prometheus.NewRegistry())
			b.ReportAllocs()
			for b.Loop() {
				send()
			}
		})
	}
}

// An agent's trace is continued as the agent wrote it, or not at all.
func FuzzAnAgentsTraceIsReadOrLeftOut(f *testing.F) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, seed := range [][2]string{
		{parent, "vendor=x,other=y"},
		{"cc" + parent[2:] + "-what-comes-later", ""},
		{"ff" + parent[2:], ""},
		{strings.ToUpper(parent), ""},
		{parent + "\r\nx: y", "a=b\r\nc: d"},
		{"00-00000000000000000000000000000000-b7ad6b7169203331-01", ""},
		{parent[:54], ""},
		{" " + parent, ""},
		{"", strings.Repeat("a=b,", 40)},
		{"\xff", "\x00"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, parent, state string) {
		span := agentSpan(map[string]string{"traceparent": parent, "tracestate": state, "TraceParent": "other"})
		if !span.IsValid() {
			return
		}
		if !strings.HasPrefix(parent[2:], "-"+span.TraceID().String()+"-"+span.SpanID().String()+"-") || !span.IsRemote() {
			t.Errorf("%q is read as %s of %s", parent, span.SpanID(), span.TraceID())
		}
		if kept := span.TraceState().String(); kept != "" && strings.ContainsFunc(kept, unicode.IsControl) {
			t.Errorf("%q is kept as %q", state, kept)
		}
	})
}
