package integration_test

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/program"
)

const (
	agentTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	agentSpan  = "00f067aa0ba902b7"
)

// tracedProvider is a provider that records the headers of its requests.
type tracedProvider struct {
	t        *testing.T
	db       *pgxpool.Pool
	provider *dispatchtest.SimulatedProvider
	config   string
	url      string

	mu   sync.Mutex
	seen []http.Header
}

func newTracedProvider(t *testing.T, plan dispatchtest.Plan) *tracedProvider {
	t.Helper()
	w := &tracedProvider{t: t, url: drainertest.Database(t), provider: &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger(), Plan: plan}}
	w.db = drainertest.Connect(t, w.url)
	w.config = program.WriteConfig(t, fmt.Sprintf(billingConfig, dispatchtest.Serve(t, w)))
	return w
}

func (w *tracedProvider) ServeHTTP(writer http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.seen = append(w.seen, r.Header.Clone())
	w.mu.Unlock()
	w.provider.ServeHTTP(writer, r)
}

// sent returns this header of every request, in their order.
func (w *tracedProvider) sent(header string) (values []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, seen := range w.seen {
		values = append(values, seen.Get(header))
	}
	return values
}

// shell returns the program with these variables and no others of OpenTelemetry.
func (w *tracedProvider) shell(variables ...string) *program.Program {
	shell := program.New(w.t, w.url, "BILLING_TOKEN=canary-token")
	shell.Env = slices.DeleteFunc(shell.Env, func(variable string) bool { return strings.HasPrefix(variable, "OTEL_") })
	shell.Env = append(shell.Env, variables...)
	return shell
}

// enqueue commits an intent with these headers, in JSON.
func (w *tracedProvider) enqueue(step, headers string) {
	w.t.Helper()
	drainertest.Exec(w.t, w.db, `SELECT outbox.enqueue('canary-run', $1, 'billing/charge', 'canary-scope', '{"card": "canary-payload"}', NULL, $2::jsonb)`, step, headers)
}

func agentHeaders() string {
	return `{"traceparent": "00-` + agentTrace + "-" + agentSpan + `-01", "tracestate": "vendor=1", "baggage": "tenant=canary-tenant"}`
}

// The trace leads from the agent's span through the outbox to the provider.
func TestEveryAttemptIsInTheAgentsTraceAndGoesOnAtTheProvider(t *testing.T) {
	t.Parallel()
	collector := newSpanCollector(t)
	w := newTracedProvider(t, dispatchtest.Script(dispatchtest.ErrorBefore, dispatchtest.DropBefore))
	w.enqueue("canary-step", agentHeaders())
	daemon := w.shell("OTEL_EXPORTER_OTLP_ENDPOINT="+collector.url, "OTEL_SERVICE_NAME=outbox",
		"OTEL_EXPORTER_OTLP_HEADERS=x-token=canary-header", "OTEL_BSP_SCHEDULE_DELAY=50").Start(w.config)
	daemon.WaitFor(`"status":"completed"`)
	drainertest.Eventually(t, "the first export, while it drains", func() bool { return len(collector.byPhase("dispatch")) > 0 })
	// Only the OpenMetrics format has exemplars.
	scrape, err := http.NewRequestWithContext(t.Context(), http.MethodGet, daemon.Base+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	scrape.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	answer, err := http.DefaultClient.Do(scrape)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	metrics, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(metrics), `# {trace_id="`+agentTrace+`"}`) {
		t.Error("no bucket of the metrics names the trace")
	}
	log := daemon.Terminate() // this exports the rest

	waits, dispatches, settles := collector.byPhase("wait"), collector.byPhase("dispatch"), collector.byPhase("settle")
	if len(waits) != 3 || len(dispatches) != 3 || len(settles) != 3 {
		t.Fatalf("there are %d waits, %d dispatches and %d settles, want 3 attempts of each", len(waits), len(dispatches), len(settles))
	}
	for _, span := range collector.spans {
		if hex.EncodeToString(span.TraceId) != agentTrace || hex.EncodeToString(span.ParentSpanId) != agentSpan {
			t.Errorf("%s is below %x of %x, want the agent's span", span.Name, span.ParentSpanId, span.TraceId)
		}
	}
	var traceparents, outcomes []string
	for i, dispatched := range dispatches {
		traceparents = append(traceparents, "00-"+agentTrace+"-"+hex.EncodeToString(dispatched.SpanId)+"-01")
		outcomes = append(outcomes, attributeOf(dispatched.Attributes, "drainer.outcome"))
		if waits[i].StartTimeUnixNano > waits[i].EndTimeUnixNano || waits[i].EndTimeUnixNano > dispatched.StartTimeUnixNano ||
			dispatched.EndTimeUnixNano != settles[i].StartTimeUnixNano || settles[i].EndTimeUnixNano < settles[i].StartTimeUnixNano {
			t.Errorf("the phases of attempt %d do not follow one another", i+1)
		}
		if got := attributeOf(dispatched.Attributes, "drainer.attempt"); got != fmt.Sprint(i+1) {
			t.Errorf("dispatch %d is of attempt %s", i+1, got)
		}
	}
	if got := w.sent("Traceparent"); !slices.Equal(got, traceparents) {
		t.Errorf("the provider was sent %q, want each attempt's dispatch, %q", got, traceparents)
	}
	if want := []string{"ambiguous", "ambiguous", "completed"}; !slices.Equal(outcomes, want) {
		t.Errorf("the dispatches ended %q, want %q", outcomes, want)
	}
	for header, want := range map[string]string{"Tracestate": "vendor=1", "Baggage": "tenant=canary-tenant"} {
		if got := w.sent(header); !slices.Equal(got, []string{want, want, want}) {
			t.Errorf("the provider was sent the %s %q, want %q each time", header, got, want)
		}
	}
	if keys := w.sent("Idempotency-Key"); keys[0] != keys[1] || keys[1] != keys[2] || !strings.Contains(keys[0], attributeOf(dispatches[0].Attributes, "drainer.idempotency_key")) {
		t.Errorf("the keys %q are not the one of the spans", keys)
	}
	if collector.service != "outbox" {
		t.Errorf("the service is %q, want outbox", collector.service)
	}
	for place, text := range map[string]string{"spans": collector.raw.String(), "log": log} {
		if strings.Contains(text, "canary") {
			t.Errorf("the %s show a canary:\n%q", place, text)
		}
	}
}

// Without traces the agent's own headers reach the provider unchanged, even if they are invalid.
func TestTracesAreOffUnlessTheEnvironmentNamesWhereTheyGo(t *testing.T) {
	t.Parallel()
	collector := newSpanCollector(t)
	w := newTracedProvider(t, nil)
	left := map[string]string{"00-" + agentTrace + "-" + agentSpan + "-01": "vendor=1, other=2", "not a traceparent": "x"}
	for traceparent, tracestate := range left {
		w.enqueue(traceparent, fmt.Sprintf(`{"TraceParent": %q, "tracestate": %q}`, traceparent, tracestate))
	}
	byDefault := make(chan struct{})
	if listener, err := net.Listen("tcp", "127.0.0.1:4318"); err == nil { // the exporter's default address
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			if _, err := listener.Accept(); err == nil {
				close(byDefault)
			}
		}()
	}
	w.shell().Run(0, "run", "--once", "--config", w.config)

	got := map[string]string{}
	for i, traceparent := range w.sent("Traceparent") {
		got[traceparent] = w.sent("Tracestate")[i]
	}
	if !maps.Equal(got, left) {
		t.Errorf("the provider was sent %q, want %q", got, left)
	}
	select {
	case <-byDefault:
		t.Error("spans were sent without a configured address")
	default:
	}

	for i, variables := range [][]string{{"OTEL_TRACES_EXPORTER=none"}, {"OTEL_SDK_DISABLED=true"}, {"OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}} {
		w.enqueue(fmt.Sprint(i), `{}`)
		w.shell(append(variables, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.url)...).Run(0, "run", "--once", "--config", w.config)
	}
	if collector.requests != 0 || w.provider.Ledger.Audit().TotalEffects() != 5 {
		t.Errorf("the collector was asked %d times for %d effects, want 0 for 5", collector.requests, w.provider.Ledger.Audit().TotalEffects())
	}
}

func TestACollectorThatNeverAnswersDelaysNoIntentAndNoShutdown(t *testing.T) {
	t.Parallel()
	asked, hang := make(chan struct{}), make(chan struct{})
	var once sync.Once
	collector := dispatchtest.Serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		once.Do(func() { close(asked) })
		<-hang
	}))
	t.Cleanup(func() { close(hang) })
	w := newTracedProvider(t, nil)
	daemon := w.shell("OTEL_EXPORTER_OTLP_ENDPOINT="+collector, "OTEL_BSP_SCHEDULE_DELAY=1", "OTEL_BSP_MAX_QUEUE_SIZE=4",
		"OTEL_EXPORTER_OTLP_TIMEOUT=3600000", "OTEL_BSP_EXPORT_TIMEOUT=3600000").Start(w.config)
	w.enqueue("first", `{}`)
	<-asked // from now on no span is exported
	const more = 50
	for i := range more {
		w.enqueue(fmt.Sprint(i), `{}`)
	}
	drainertest.Eventually(t, "all intents complete while the collector hangs", func() bool {
		return w.provider.Ledger.Audit().TotalEffects() == more+1 && strings.Contains(daemon.Get("/metrics"), `drainer_in_flight{provider="billing"} 0`)
	})
	metrics := daemon.Get("/metrics")
	if strings.Contains(metrics, `drainer_trace_spans_total{outcome="dropped"} 0`) || !strings.Contains(metrics, `drainer_trace_spans_total{outcome="exported"} 0`) {
		t.Error("the metrics do not show that spans were dropped and none was exported")
	}
	log := daemon.Terminate() // its flush ends although the collector does not answer
	for line, want := range map[string]int{"spans are dropped": 1, "still waiting to be exported": 1} {
		if got := strings.Count(log, line); got != want {
			t.Errorf("the log says %d times that %s, want %d", got, line, want)
		}
	}
}

func TestACollectorThatIsNotThereCostsOneLine(t *testing.T) {
	t.Parallel()
	w := newTracedProvider(t, nil)
	daemon := w.shell("OTEL_EXPORTER_OTLP_ENDPOINT=http://canary:canary@"+dispatchtest.Address(t), "OTEL_BSP_SCHEDULE_DELAY=1").Start(w.config)
	for i := range 3 {
		w.enqueue(fmt.Sprint(i), `{}`)
		drainertest.Eventually(t, "it drains and loses the spans", func() bool {
			return strings.Contains(daemon.Get("/metrics"), fmt.Sprintf(`drainer_trace_spans_total{outcome="failed"} %d`, 3*(i+1)))
		})
	}
	log := daemon.Terminate()
	if got := strings.Count(log, "spans cannot be exported"); got != 1 || strings.Contains(log, "canary") {
		t.Errorf("the log says %d times that spans cannot be exported, want once and without the URL's password:\n%s", got, log)
	}
	if got := w.provider.Ledger.Audit().TotalEffects(); got != 3 {
		t.Errorf("there were %d effects, want 3", got)
	}
}

// spanCollector takes OTLP over HTTP, as a collector does.
type spanCollector struct {
	url string

	mu       sync.Mutex
	raw      bytes.Buffer // all bodies
	requests int
	service  string
	spans    []*traces.Span
}

func newSpanCollector(t *testing.T) *spanCollector {
	t.Helper()
	c := &spanCollector{}
	c.url = dispatchtest.Serve(t, c)
	return c
}

func (c *spanCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	body, err := io.ReadAll(r.Body)
	var export collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &export) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.raw.Write(body)
	for _, resource := range export.ResourceSpans {
		c.service = attributeOf(resource.Resource.Attributes, "service.name")
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// byPhase returns the spans of that phase, the earliest first.
func (c *spanCollector) byPhase(phase string) (spans []*traces.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, span := range c.spans {
		if strings.HasPrefix(span.Name, phase+" ") {
			spans = append(spans, span)
		}
	}
	slices.SortFunc(spans, func(a, b *traces.Span) int { return cmp.Compare(a.StartTimeUnixNano, b.StartTimeUnixNano) })
	return spans
}

// attributeOf returns an attribute as text. It is empty if there is none.
func attributeOf(attributes []*common.KeyValue, key string) string {
	for _, attribute := range attributes {
		if attribute.Key != key {
			continue
		}
		switch value := attribute.Value.Value.(type) {
		case *common.AnyValue_IntValue:
			return strconv.FormatInt(value.IntValue, 10)
		case *common.AnyValue_BoolValue:
			return strconv.FormatBool(value.BoolValue)
		default:
			return attribute.Value.GetStringValue()
		}
	}
	return ""
}
