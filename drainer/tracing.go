package drainer

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/agentoutbox/drainer/dispatch"
)

// tracing makes spans of attempts, in the trace that the agent left with its
// intent. Like the observer, it shows none of a row's payload, key parts or
// headers. nil traces nothing.
type tracing struct{ tracer trace.Tracer }

func newTracing(provider trace.TracerProvider) *tracing {
	if provider == nil {
		return nil
	}
	return &tracing{provider.Tracer("github.com/agentoutbox/drainer")}
}

// attemptSpans holds the spans of one attempt, which are siblings below the agent's span:
//
//	wait      from when it was enqueued, or due again, until it was claimed
//	dispatch  the call of the adapter; the provider's own spans are its children
//	settle    from the outcome until the commit that records it
//
// Without an agent's trace, the wait begins one and the others are its children. An attempt that was released
// unsent leaves no span. nil does nothing.
type attemptSpans struct {
	tracer    trace.Tracer
	tool      string
	common    []attribute.KeyValue // of all three; none where nothing is recorded
	parent    context.Context
	fromAgent bool // parent is the agent's span
	wait      trace.Span
	dispatch  trace.Span
	settle    trace.Span // nil until the attempt has an outcome
}

// begin is called right before a row is sent. The context that it returns is for the dispatch.
func (t *tracing) begin(ctx context.Context, row *Row, policy dispatch.Policy) (context.Context, *attemptSpans) {
	if t == nil {
		return ctx, nil
	}
	agent := agentSpan(row.Headers)
	s := &attemptSpans{
		tracer:    t.tracer,
		tool:      row.server() + "/" + operationFor(row, policy),
		parent:    trace.ContextWithRemoteSpanContext(ctx, agent),
		fromAgent: agent.IsValid(),
	}
	waiting, wait := s.start("wait", trace.WithTimestamp(row.ClaimedAt.Add(-waited(row))))
	s.wait = wait
	if !s.fromAgent {
		s.parent = waiting
	}
	ctx, s.dispatch = s.start("dispatch", trace.WithSpanKind(trace.SpanKindClient))
	if s.dispatch.IsRecording() {
		s.common = attributesOf(row, policy)
		s.wait.SetAttributes(s.common...)
		s.dispatch.SetAttributes(s.common...)
	}
	return ctx, s
}

func (s *attemptSpans) start(phase string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	return s.tracer.Start(s.parent, phase+" "+s.tool, options...)
}

// continued returns the headers for the provider, in which the trace goes on below the dispatch. If the dispatch is not
// recorded, the agent's own trace context stays.
func (s *attemptSpans) continued(headers map[string]string) map[string]string {
	if s == nil || (s.fromAgent && !s.dispatch.IsRecording()) {
		return headers
	}
	continued := make(map[string]string, len(headers)+2)
	maps.Copy(continued, headers)
	maps.DeleteFunc(continued, func(name, _ string) bool {
		return strings.EqualFold(name, "traceparent") || strings.EqualFold(name, "tracestate")
	})
	propagation.TraceContext{}.Inject(trace.ContextWithSpan(context.Background(), s.dispatch), propagation.MapCarrier(continued))
	return continued
}

// dispatched ends the dispatch span. From then on the attempt waits for its commit.
func (s *attemptSpans) dispatched(settlement *Settlement) {
	if s == nil {
		return
	}
	s.wait.End(trace.WithTimestamp(settlement.Row.ClaimedAt))
	judge(s.dispatch, settlement)
	s.dispatch.End(trace.WithTimestamp(settlement.FinishedAt))
	_, s.settle = s.start("settle", trace.WithTimestamp(settlement.FinishedAt))
	s.settle.SetAttributes(s.common...)
	s.settle.SetAttributes(attribute.String("drainer.status", string(settlement.Decision.Status)))
}

// traceID returns "" if nothing is recorded.
func (s *attemptSpans) traceID() string {
	if s == nil || !s.dispatch.IsRecording() {
		return ""
	}
	return s.dispatch.SpanContext().TraceID().String()
}

// refused ends an attempt whose row another worker took over.
func (s *attemptSpans) refused() {
	if s != nil && s.settle != nil {
		s.settle.SetStatus(codes.Error, "lease_lost")
		s.settle.SetAttributes(attribute.String("error.type", "lease_lost"))
		s.settle.End()
	}
}

// settled ends an attempt after its commit. For a refused one it does nothing.
func (s *attemptSpans) settled() {
	if s != nil && s.settle != nil {
		s.settle.End()
	}
}

func attributesOf(row *Row, policy dispatch.Policy) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		attribute.String("drainer.provider", row.server()),
		attribute.String("drainer.operation", operationFor(row, policy)),
		attribute.String("drainer.class", string(policy.Class)),
		attribute.Int64("drainer.intent_id", row.IntentID),
		attribute.Int("drainer.attempt", row.Attempt),
		attribute.String("drainer.idempotency_key", row.idempotencyKey()),
		attribute.Bool("drainer.lookup", row.Lookup),
	}
	if row.Undoes != nil {
		attributes = append(attributes, attribute.Int64("drainer.undoes", *row.Undoes))
	}
	return attributes
}

// judge sets the status of the dispatch span. An answer to a lookup is never an error.
func judge(span trace.Span, settlement *Settlement) {
	if !span.IsRecording() {
		return
	}
	result := settlement.Result
	span.SetAttributes(
		attribute.String("drainer.outcome", string(result.Outcome)),
		attribute.Bool("drainer.replayed", result.Replayed),
	)
	if result.HTTPStatus != 0 {
		span.SetAttributes(attribute.Int("http.response.status_code", result.HTTPStatus))
	}
	if result.ErrorClass != "" {
		span.SetAttributes(attribute.String("error.type", result.ErrorClass))
	}
	answered := result.Outcome == dispatch.Completed || (settlement.Row.Lookup && result.Outcome == dispatch.Absent)
	if !answered {
		span.SetStatus(codes.Error, string(result.Outcome))
	}
}

// waited is how long a row waited for its claim: since it was enqueued or, after a first attempt, since it was
// due again.
func waited(row *Row) time.Duration {
	if row.Tries == 1 && row.FirstAttemptAt == nil {
		return row.SinceEnqueue
	}
	return row.SinceDue
}

// agentSpan is the agent's span when it left the intent; it is invalid
// if the agent left none, or nothing that can be read.
func agentSpan(headers map[string]string) trace.SpanContext {
	left := propagation.MapCarrier{
		"traceparent": valueOf(headers, "traceparent"),
		"tracestate":  valueOf(headers, "tracestate"),
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), left))
}

// valueOf finds a header by its name in any case. Of several spellings it takes the one that an adapter would
// send.
func valueOf(headers map[string]string, name string) (value string) {
	for _, written := range slices.Sorted(maps.Keys(headers)) { // in which lower case is the last
		if strings.ToLower(written) == name {
			value = headers[written]
		}
	}
	return value
}
