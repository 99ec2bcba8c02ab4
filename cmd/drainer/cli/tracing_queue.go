package cli

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// spanQueue stands between the lanes and the collector. It takes a bounded
// number of spans and never waits: those that find it full are dropped, and a
// collector that fails costs its spans and one line in the log.
type spanQueue struct {
	sdktrace.SpanProcessor // gathers batches and exports them, one at a time

	room    int64        // for spans that wait, or are on their way
	waiting atomic.Int64 // of these
	metrics *prometheus.CounterVec
	log     *slog.Logger
	full    sync.Once

	failing bool // these two are the exporting goroutine's
	lost    int  // since it began to fail
}

func newSpanQueue(exporter sdktrace.SpanExporter, metrics *prometheus.CounterVec, log *slog.Logger) *spanQueue {
	q := &spanQueue{room: queueSize(), metrics: metrics, log: log}
	q.SpanProcessor = sdktrace.NewBatchSpanProcessor(watchedExporter{exporter, q}, sdktrace.WithMaxQueueSize(int(q.room)))
	return q
}

// queueSize is read here, too, so that this queue is full before the one behind
// it, which does not tell.
func queueSize() int64 {
	if size, err := strconv.Atoi(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE")); err == nil && size > 0 {
		return int64(size)
	}
	return sdktrace.DefaultMaxQueueSize
}

// OnEnd is called by whoever ends a span.
func (q *spanQueue) OnEnd(span sdktrace.ReadOnlySpan) {
	if !span.SpanContext().IsSampled() {
		return
	}
	if q.waiting.Add(1) > q.room {
		q.waiting.Add(-1)
		q.metrics.WithLabelValues("dropped").Inc()
		q.full.Do(func() {
			q.log.Warn("spans are dropped, as more end than the collector takes; drainer_trace_spans_total goes on counting them", "queue", q.room)
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

// end tells of what the last export, which ended so, left behind.
func (q *spanQueue) end(err error) {
	if left := q.waiting.Load(); left > 0 {
		q.log.Warn("spans were still waiting to be exported at the end", "spans", left, "error", shortened(err))
	}
}

// shortened keeps a collector's error page from filling the log.
func shortened(err error) string {
	const most = 300
	if err == nil {
		return ""
	}
	text := []rune(err.Error())
	return string(text[:min(most, len(text))])
}

// watchedExporter reports how each export ended to the queue alone.
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
		Help: "Spans by what became of them: exported, failed with the export, or dropped before it.",
	}, []string{"outcome"})
	for _, outcome := range []string{"exported", "failed", "dropped"} {
		spans.WithLabelValues(outcome)
	}
	registerer.MustRegister(spans)
	return spans
}
