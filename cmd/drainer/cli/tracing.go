package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// flushTimeout bounds the last export. It begins after the last row is settled,
// and deployments allow for little more than worker.shutdown_timeout.
const flushTimeout = 2 * time.Second

// startTracing exports spans if the environment asks for it. It returns nil if
// it does not, and if it cannot be done: that is logged, and no reason not to
// drain. flush is called after the last span.
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

// describeProcess says who traced. OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES go before its own words.
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
		log.Warn("traces do not say all of where they come from", "error", err)
	}
	return described
}

// wordsOnly logs messages without their values: the exporter logs what it cannot
// read of its environment, which may be a token.
type wordsOnly struct{ slog.Handler }

func (h wordsOnly) Handle(ctx context.Context, record slog.Record) error {
	return h.Handler.Handle(ctx, slog.NewRecord(record.Time, record.Level, "tracing cannot use a variable of its environment: "+record.Message, 0))
}

func (h wordsOnly) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h wordsOnly) WithGroup(string) slog.Handler { return h }
