package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/term"

	"github.com/agentoutbox/drainer/drainer/config"
)

// newLogger writes text to a terminal and JSON otherwise, unless the configuration chooses the format. Lines may
// wait in memory until flush is called.
func newLogger(told config.Log) (logger *slog.Logger, flush func()) {
	lines := newLogWriter(os.Stderr)
	logger = slog.New(handlerOf(told, lines, term.IsTerminal(int(os.Stderr.Fd()))))
	redirectStandardLog(logger)
	return logger, lines.Close
}

func handlerOf(told config.Log, lines io.Writer, isTerminal bool) slog.Handler {
	levels := map[string]slog.Level{"warn": slog.LevelWarn, "error": slog.LevelError}
	options := &slog.HandlerOptions{Level: levels[told.Level]} // without an entry the level is info
	var handler slog.Handler = slog.NewJSONHandler(lines, options)
	if told.Format == "text" || told.Format == "" && isTerminal {
		handler = slog.NewTextHandler(lines, options)
	}
	if told.CompletedEvery > 1 {
		handler = sampled{Handler: handler, every: uint64(told.CompletedEvery), seen: new(atomic.Uint64)}
	}
	return handler
}

// sampled writes only one of every so many lines of completed attempts. It recognises them by an attribute that the
// engine renders once for all attempts of an outcome.
type sampled struct {
	slog.Handler
	every     uint64
	seen      *atomic.Uint64
	completed bool
}

func (s sampled) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, attr := range attrs {
		s.completed = s.completed || attr.Key == "outcome" && attr.Value.String() == "completed"
	}
	s.Handler = s.Handler.WithAttrs(attrs)
	return s
}

func (s sampled) WithGroup(name string) slog.Handler {
	s.Handler = s.Handler.WithGroup(name)
	return s
}

func (s sampled) Handle(ctx context.Context, record slog.Record) error {
	if s.completed && record.Level == slog.LevelInfo && s.seen.Add(1)%s.every != 1 {
		return nil
	}
	return s.Handler.Handle(ctx, record)
}

// redirectStandardLog sends the lines that libraries write to Go's standard logger to the given logger.
func redirectStandardLog(logger *slog.Logger) {
	log.SetFlags(0)
	log.SetOutput(wordless{logger})
}

// wordless logs that a library has written a line, but not the line itself. net/http quotes bytes that a provider
// sends over an idle connection, and these may be an answer with secrets.
type wordless struct{ log *slog.Logger }

func (w wordless) Write(line []byte) (int, error) {
	w.log.Warn("a library has logged something, which is not shown because it may be secret", "bytes", len(line))
	return len(line), nil
}

const (
	// logLinger is how long a line waits for others, so that they share one system call. A system call for each line
	// would cost a busy daemon more than the line itself.
	logLinger = 5 * time.Millisecond
	// enoughLines is how many waiting bytes are written at once. A larger write would save little.
	enoughLines = 64 << 10
)

// logWriter writes many lines at once. If the process is killed, the waiting lines are lost.
type logWriter struct {
	out    io.Writer
	linger *time.Timer

	mu      sync.Mutex
	waiting []byte
	isOver  bool
}

func newLogWriter(out io.Writer) *logWriter {
	w := &logWriter{out: out}
	w.linger = time.AfterFunc(logLinger, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.flush()
	})
	return w
}

// Write blocks its callers while the reader of the log takes nothing, which bounds the memory.
func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		w.linger.Reset(logLinger)
	}
	w.waiting = append(w.waiting, line...)
	if len(w.waiting) >= enoughLines || w.isOver {
		w.flush()
	}
	return len(line), nil
}

// flush writes the waiting lines. The caller holds mu.
func (w *logWriter) flush() {
	if len(w.waiting) > 0 {
		_, _ = w.out.Write(w.waiting) // without the log, the error cannot be reported
		w.waiting = w.waiting[:0]
	}
}

// Close writes the waiting lines. Later lines are written at once.
func (w *logWriter) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isOver = true
	w.linger.Stop()
	w.flush()
}

// flushTimeout bounds the last export. The export begins after the last row is settled, and deployments allow for
// little more than worker.shutdown_timeout.
const flushTimeout = 2 * time.Second

// startTracing exports spans if the environment asks for it. Otherwise it returns nil. It also returns nil if it
// cannot export, which it logs: a daemon drains without traces as well. flush is called after the last span.
func startTracing(ctx context.Context, log *slog.Logger, metrics prometheus.Registerer) (traces trace.TracerProvider, flush func()) {
	spans := newSpanMetrics(metrics)
	wanted, warning := tracesWanted()
	if warning != "" {
		log.Warn("traces are not exported", "reason", warning)
	}
	if !wanted {
		return nil, func() {}
	}
	otel.SetLogger(logr.FromSlogHandler(wordsOnly{log.Handler()}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("tracing", "error", err) }))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		log.Warn("traces are not exported", "reason", err)
		return nil, func() {}
	}
	queue := newSpanQueue(exporter, spans, log)
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(describeProcess(ctx, log)), sdktrace.WithSpanProcessor(queue))
	log.Info("traces are exported")
	return provider, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		queue.end(provider.Shutdown(ctx))
	}
}

// describeProcess describes this process for its traces. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override its
// own values.
func describeProcess(ctx context.Context, log *slog.Logger) *resource.Resource {
	described, err := resource.New(ctx,
		resource.WithHost(),
		resource.WithTelemetrySDK(),
		resource.WithAttributes(
			attribute.String("service.name", "drainer"),
			attribute.String("service.version", currentVersion().Version),
		),
		resource.WithFromEnv(),
	)
	if err != nil {
		log.Warn("traces lack a part of their resource attributes", "error", err)
	}
	return described
}

// wordsOnly logs messages without their values: the exporter logs variables of its environment that it cannot parse,
// and they may contain a token.
type wordsOnly struct{ slog.Handler }

func (h wordsOnly) Handle(ctx context.Context, record slog.Record) error {
	return h.Handler.Handle(ctx, slog.NewRecord(record.Time, record.Level, "tracing cannot use a variable of its environment: "+record.Message, 0))
}

func (h wordsOnly) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h wordsOnly) WithGroup(string) slog.Handler { return h }

// tracesWanted reads the standard variables of OpenTelemetry
// (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/). Unlike the standard's
// default, nothing is exported unless an exporter or an endpoint is named. The warning says why a requested export
// is impossible. It repeats no value that may contain a credential.
func tracesWanted() (wanted bool, warning string) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, ""
	}
	endpointVariable := "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	if os.Getenv(endpointVariable) == "" {
		endpointVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"
	}
	endpoint := strings.TrimSpace(os.Getenv(endpointVariable))
	switch exporter := strings.TrimSpace(os.Getenv("OTEL_TRACES_EXPORTER")); {
	case exporter == "none", exporter == "" && endpoint == "":
		return false, ""
	case exporter != "" && exporter != "otlp":
		return false, fmt.Sprintf("OTEL_TRACES_EXPORTER is %q; drainer knows otlp and none", exporter)
	}
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	if protocol != "http/protobuf" && protocol != "http/json" {
		return false, fmt.Sprintf("OTEL_EXPORTER_OTLP_PROTOCOL is %q; drainer speaks http/protobuf and http/json, which collectors listen for on port 4318", protocol)
	}
	if endpoint != "" && !isHTTP(endpoint) {
		return false, endpointVariable + " is no URL of the form http://host:4318"
	}
	return true, ""
}

func isHTTP(endpoint string) bool {
	parsed, err := url.Parse(endpoint)
	return err == nil && (parsed.Scheme == "http" || parsed.Scheme == "https") && parsed.Host != ""
}

// spanQueue lies between the dispatching and the collector. It holds a bounded number of spans and never waits. A
// span that finds the queue full is dropped. If the collector fails, its spans are lost and one line is logged.
type spanQueue struct {
	sdktrace.SpanProcessor // collects batches and exports them, one at a time

	room    int64        // the most spans that wait or are being exported
	waiting atomic.Int64 // how many spans do so now
	metrics *prometheus.CounterVec
	log     *slog.Logger
	full    sync.Once

	failing bool // failing and lost belong to the exporting goroutine
	lost    int  // spans lost since it began to fail
}

func newSpanQueue(exporter sdktrace.SpanExporter, metrics *prometheus.CounterVec, log *slog.Logger) *spanQueue {
	q := &spanQueue{room: queueSize(), metrics: metrics, log: log}
	q.SpanProcessor = sdktrace.NewBatchSpanProcessor(watchedExporter{exporter, q}, sdktrace.WithMaxQueueSize(int(q.room)))
	return q
}

// queueSize reads the size of the library's queue, so that this queue is full before the library's queue, which does
// not report its drops.
func queueSize() int64 {
	if size, err := strconv.Atoi(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE")); err == nil && size > 0 {
		return int64(size)
	}
	return sdktrace.DefaultMaxQueueSize
}

// OnEnd is called by the goroutine that ends the span. It does not wait.
func (q *spanQueue) OnEnd(span sdktrace.ReadOnlySpan) {
	if !span.SpanContext().IsSampled() {
		return
	}
	if q.waiting.Add(1) > q.room {
		q.waiting.Add(-1)
		q.metrics.WithLabelValues("dropped").Inc()
		q.full.Do(func() {
			q.log.Warn("spans are dropped, because more end than the collector takes; drainer_trace_spans_total counts them", "queue", q.room)
		})
		return
	}
	q.SpanProcessor.OnEnd(span)
}

func (q *spanQueue) exported(spans int, err error) {
	q.waiting.Add(-int64(spans))
	if err != nil {
		q.metrics.WithLabelValues("failed").Add(float64(spans))
		q.lost += spans
		if !q.failing {
			q.log.Warn("spans cannot be exported and are lost; draining goes on without them", "error", shortened(err))
		}
		q.failing = true
		return
	}
	q.metrics.WithLabelValues("exported").Add(float64(spans))
	if q.failing {
		q.log.Info("spans are exported again", "lost", q.lost)
	}
	q.failing, q.lost = false, 0
}

// end logs how many spans the last export left.
func (q *spanQueue) end(err error) {
	if left := q.waiting.Load(); left > 0 {
		q.log.Warn("spans were still waiting to be exported at the end", "spans", left, "error", shortened(err))
	}
}

// shortened cuts an error, so that a collector's error page does not fill the log.
func shortened(err error) string {
	const most = 300
	if err == nil {
		return ""
	}
	text := []rune(err.Error())
	return string(text[:min(most, len(text))])
}

// watchedExporter reports the result of each export only to the queue.
type watchedExporter struct {
	sdktrace.SpanExporter

	queue *spanQueue
}

func (e watchedExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.queue.exported(len(spans), e.SpanExporter.ExportSpans(ctx, spans))
	return nil
}

func newSpanMetrics(registerer prometheus.Registerer) *prometheus.CounterVec {
	spans := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "drainer", Name: "trace_spans_total",
		Help: "Spans: exported, failed with the export, or dropped before it.",
	}, []string{"outcome"})
	for _, outcome := range []string{"exported", "failed", "dropped"} {
		spans.WithLabelValues(outcome)
	}
	registerer.MustRegister(spans)
	return spans
}
