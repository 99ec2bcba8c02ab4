package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
	"github.com/agentoutbox/drainer/drainer/config"
)

// lines sends each logged line to the test that waits for it.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// TestWhatAProviderSaysUnaskedIsNotLogged is not parallel, because there is only one standard logger.
func TestWhatAProviderSaysUnaskedIsNotLogged(t *testing.T) {
	logged := make(lines, 16)
	before, flags := log.Writer(), log.Flags()
	defer func() { log.SetOutput(before); log.SetFlags(flags) }()
	redirectStandardLog(slog.New(slog.NewJSONHandler(logged, nil)))

	const canary = "iban-DE02-secret"
	bank := dispatchtest.ServeConns(t, func(conn net.Conn) {
		if dispatchtest.ReadRequest(bufio.NewReader(conn)) == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\n"+canary)
			_, _ = io.Copy(io.Discard, conn) // until the adapter leaves
		}
	})
	adapter := dispatchtest.Build(t, dispatchhttp.New, dispatch.Spec{
		Provider: "bank",
		Settings: dispatchtest.Block("base_url: http://" + bank),
		Tools:    map[string]dispatch.ToolSpec{"pay": {Class: dispatch.NonIdempotent, Settings: dispatchtest.Block("path: /pay")}},
	})
	// The payload is long enough for the standard transport to log the response that it did not ask for.
	payload := json.RawMessage(`{"reference": "` + strings.Repeat("x", 8<<10) + `"}`)
	got := adapter.Dispatch(t.Context(), dispatch.Request{Tuple: dispatch.Tuple{ToolName: "bank/pay"}, Payload: payload})
	if got.Outcome != dispatch.Completed {
		t.Fatalf("got %+v", got)
	}
	if line := <-logged; strings.Contains(line, canary) || !strings.Contains(line, `"bytes"`) {
		t.Errorf("logged: %s", line)
	}
}

func TestEveryLineIsWrittenOnceAndWhole(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 500
	var log bytes.Buffer
	lines := newLogWriter(&log)
	var writing sync.WaitGroup
	for writer := range writers {
		writing.Go(func() {
			for line := range each {
				fmt.Fprintf(lines, "writer %d line %d\n", writer, line)
			}
		})
	}
	writing.Wait()
	lines.Close()
	seen := map[string]bool{}
	for line := range strings.Lines(log.String()) {
		if seen[line] {
			t.Fatalf("written twice: %q", line)
		}
		seen[line] = true
	}
	if len(seen) != writers*each || !seen["writer 7 line 499\n"] {
		t.Errorf("%d lines are written, want %d", len(seen), writers*each)
	}
}

func TestALineComesThoughNoOtherFollows(t *testing.T) {
	t.Parallel()
	reader, out := io.Pipe()
	lines := newLogWriter(out)
	fmt.Fprint(lines, "alone\n")
	line := make([]byte, 100)
	if n, err := reader.Read(line); err != nil || string(line[:n]) != "alone\n" {
		t.Errorf("read %q, %v", line[:n], err)
	}
	lines.Close()
}

func TestManyLinesWaitForNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader, out := io.Pipe()
		lines := newLogWriter(out)
		began := time.Now()
		go func() { _, _ = lines.Write(make([]byte, enoughLines)) }()
		if _, err := io.ReadFull(reader, make([]byte, enoughLines)); err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("they waited %s for company", waited)
		}
		lines.Close()
	})
}

func TestALogThatNobodyReadsHoldsItsWritersUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size, count = enoughLines / 2, 32
		reader, out := io.Pipe()
		lines := newLogWriter(out)
		var written atomic.Int64
		go func() {
			for range count {
				_, _ = lines.Write(bytes.Repeat([]byte("x"), size))
				written.Add(1)
			}
			lines.Close()
			_ = out.Close()
		}()
		synctest.Wait()
		if held := written.Load(); held == count {
			t.Error("every line was taken into memory")
		}
		if log, err := io.ReadAll(reader); err != nil || len(log) != count*size {
			t.Errorf("%d bytes and %v came, want %d", len(log), err, count*size)
		}
	})
}

func TestALineAfterTheEndIsWrittenAtOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	lines := newLogWriter(&log)
	lines.Close()
	lines.Close()
	fmt.Fprint(lines, "late\n")
	if log.String() != "late\n" {
		t.Errorf("the log says %q", log.String())
	}
}

// onlyTracing empties OpenTelemetry's variables in the environment, and sets these.
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

// A setting that the exporter cannot read is logged without its value, which may be a token.
func TestAMistakeInTheEnvironmentIsLoggedWithoutItsValue(t *testing.T) {
	onlyTracing(t, map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_HEADERS": "canary", "OTEL_EXPORTER_OTLP_TIMEOUT": "canary"})
	var said bytes.Buffer
	_, flush := startTracing(t.Context(), slog.New(slog.NewTextHandler(&said, nil)), prometheus.NewRegistry())
	flush()
	if text := said.String(); strings.Contains(text, "canary") || !strings.Contains(text, "parse headers") || !strings.Contains(text, "parse duration") {
		t.Errorf("it says\n%s", text)
	}
}

// collecting answers each export with the next of its answers.
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
		for range 2 { // the second span finds the queue full
			_, span := tracer.Start(t.Context(), "span")
			span.End()
		}
		collector.answers <- answer
		if err := provider.ForceFlush(t.Context()); err != nil { // after this, the answer is counted
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

func TestTheProcessKeepsBelowTheMemoryOfItsCgroup(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	t.Setenv("GOMEMLIMIT", "") // the end of the test restores it
	for name, test := range map[string]struct {
		set   string
		of    memlimit.Provider
		want  int64
		lines string
	}{
		"a limit":           {"", memlimit.Limit(1000 << 20), 900 << 20, `msg="memory limit" bytes=943718400`},
		"GOMEMLIMIT is set": {"1GiB", memlimit.Limit(1000 << 20), before, ""},
		"no limit":          {"", func() (uint64, error) { return 0, memlimit.ErrNoLimit }, before, ""},
		"no cgroup":         {"", func() (uint64, error) { return 0, memlimit.ErrNoCgroup }, before, ""},
		"unreadable":        {"", func() (uint64, error) { return 0, errors.New("no such file") }, before, "set GOMEMLIMIT"},
	} {
		debug.SetMemoryLimit(before)
		if os.Setenv("GOMEMLIMIT", test.set); test.set == "" {
			os.Unsetenv("GOMEMLIMIT")
		}
		var said strings.Builder
		limitMemory(slog.New(slog.NewTextHandler(&said, nil)), test.of)
		if got := debug.SetMemoryLimit(-1); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
		if !strings.Contains(said.String(), test.lines) || (said.Len() > 0) != (test.lines != "") {
			t.Errorf("%s: it says %q", name, said.String())
		}
	}
}

func TestOneOfManyCompletedAttemptsIsLoggedAndEveryOther(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		told            config.Log
		completed, rest int // of 10 lines each
	}{
		"all":           {config.Log{Level: "info", CompletedEvery: 1}, 10, 20},
		"one of four":   {config.Log{Level: "info", CompletedEvery: 4}, 3, 20},
		"warnings only": {config.Log{Level: "warn", CompletedEvery: 4}, 0, 10},
	} {
		var written bytes.Buffer
		handler := handlerOf(test.told, &written, false)
		log := slog.New(handler)
		completed := slog.New(handler.WithAttrs([]slog.Attr{slog.String("provider", "p"), slog.String("outcome", "completed")}))
		throttled := slog.New(handler.WithAttrs([]slog.Attr{slog.String("provider", "p"), slog.String("outcome", "throttled")}))
		for range 10 {
			completed.Info("attempt")
			throttled.Info("attempt")
			log.Warn("something else")
		}
		if got := strings.Count(written.String(), `"outcome":"completed"`); got != test.completed {
			t.Errorf("%s: %d lines of completed attempts, want %d", name, got, test.completed)
		}
		if got := strings.Count(written.String(), "\n") - test.completed; got != test.rest {
			t.Errorf("%s: %d other lines, want %d", name, got, test.rest)
		}
	}
}

func TestLinesAreTextOnATerminalUnlessTold(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		format     string
		isTerminal bool
		isJSON     bool
	}{{"", true, false}, {"", false, true}, {"json", true, true}, {"text", false, false}} {
		var written bytes.Buffer
		slog.New(handlerOf(config.Log{Format: test.format}, &written, test.isTerminal)).Info("hello")
		if got := json.Valid(written.Bytes()); got != test.isJSON {
			t.Errorf("%+v: %s", test, written.String())
		}
	}
}
