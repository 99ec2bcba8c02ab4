package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// onlyTracing takes OpenTelemetry's variables out of the environment, but for these.
func onlyTracing(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
}

func TestTheEnvironmentSwitchesTracesOn(t *testing.T) {
	const endpoint, of = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER"
	for name, test := range map[string]struct {
		variables map[string]string
		wanted    bool
		warns     string
	}{
		"nothing":               {nil, false, ""},
		"a service's name":      {map[string]string{"OTEL_SERVICE_NAME": "x"}, false, ""},
		"an endpoint":           {map[string]string{endpoint: "http://c:4318"}, true, ""},
		"an endpoint of traces": {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/v1/traces"}, true, ""},
		"the exporter":          {map[string]string{of: "otlp"}, true, ""},
		"no exporter":           {map[string]string{of: "none", endpoint: "http://c:4318"}, false, ""},
		"all disabled":          {map[string]string{"OTEL_SDK_DISABLED": "True", endpoint: "http://c:4318"}, false, ""},
		"another exporter":      {map[string]string{of: "zipkin", endpoint: "http://c:4318"}, false, "zipkin"},
		"gRPC":                  {map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", endpoint: "http://c:4317"}, false, "4318"},
		"gRPC, but not traces":  {map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json", endpoint: "http://c:4318"}, true, ""},
		"no URL":                {map[string]string{endpoint: "canary:4318"}, false, endpoint},
		"half a URL":            {map[string]string{endpoint: "http://:canary@"}, false, endpoint},
	} {
		t.Run(name, func(t *testing.T) {
			onlyTracing(t, test.variables)
			wanted, warning := tracesWanted()
			if wanted != test.wanted || !strings.Contains(warning, test.warns) || (warning == "") != (test.warns == "") {
				t.Errorf("wanted is %v with the warning %q, want %v and one of %q", wanted, warning, test.wanted, test.warns)
			}
			if strings.Contains(warning, "canary") {
				t.Errorf("the warning %q repeats what may be a credential", warning)
			}
		})
	}
}

// What the exporter cannot read is named without its value, which may be a token.
func TestAMistakeInTheEnvironmentIsLoggedWithoutItsValue(t *testing.T) {
	onlyTracing(t, map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_HEADERS": "canary", "OTEL_EXPORTER_OTLP_TIMEOUT": "canary"})
	var said bytes.Buffer
	_, flush := startTracing(t.Context(), slog.New(slog.NewTextHandler(&said, nil)), prometheus.NewRegistry())
	flush()
	if text := said.String(); strings.Contains(text, "canary") || !strings.Contains(text, "parse headers") || !strings.Contains(text, "parse duration") {
		t.Errorf("it says\n%s", text)
	}
}

// collecting answers every export with what it is told to.
type collecting struct{ answers chan error }

func (c collecting) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return <-c.answers }

func (c collecting) Shutdown(context.Context) error { return nil }

func TestAnOutageOfTheCollectorIsTwoLinesAndEverySpanIsCounted(t *testing.T) {
	onlyTracing(t, map[string]string{"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1", "OTEL_BSP_MAX_QUEUE_SIZE": "1"})
	var said bytes.Buffer
	collector := collecting{make(chan error)}
	registry := prometheus.NewRegistry()
	queue := newSpanQueue(collector, newSpanMetrics(registry), slog.New(slog.NewTextHandler(&said, nil)))
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(queue))
	tracer := provider.Tracer("test")

	for _, answer := range []error{errors.New(strings.Repeat("x", 1<<20)), errors.New("again"), nil, nil} {
		for range 2 { // the second finds the queue full
			_, span := tracer.Start(t.Context(), "span")
			span.End()
		}
		collector.answers <- answer
		if err := provider.ForceFlush(t.Context()); err != nil { // after which the answer is counted
			t.Fatal(err)
		}
	}
	queue.end(provider.Shutdown(t.Context()))

	if got, want := spansIn(t, registry), map[string]float64{"exported": 2, "failed": 2, "dropped": 4}; !maps.Equal(got, want) {
		t.Errorf("spans count as %v, want %v", got, want)
	}
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	if len(lines) != 3 || len(said.String()) > 2000 || !strings.Contains(lines[0], "are dropped") || !strings.Contains(lines[1], "cannot be exported") || !strings.Contains(lines[2], "exported again\" lost=2") {
		t.Errorf("it says\n%.2000s", said.String())
	}
}

func spansIn(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]float64{}
	for _, metric := range families[0].GetMetric() {
		counted[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
	}
	return counted
}
