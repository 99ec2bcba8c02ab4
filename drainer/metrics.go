package drainer

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
)

// unconfigured is the label of everything that the configuration does not
// name: a row must never create a label.
const unconfigured = "unconfigured"

// settledStatuses are the final statuses that an attempt can give to an intent. Operators and sagas give it
// others.
var settledStatuses = []dispatch.Status{dispatch.StatusCompleted, dispatch.StatusFailed, dispatch.StatusUnknown}

// isSettled holds for an intent that no attempt follows.
func isSettled(status dispatch.Status, looksUp bool) bool {
	return slices.Contains(settledStatuses, status) && !looksUp
}

type metrics struct {
	batchDuration    prometheus.Histogram
	batchFailures    prometheus.Counter
	claimed          *prometheus.CounterVec
	leasesLost       *prometheus.CounterVec
	attempts         *attempts
	dispatchDuration *prometheus.HistogramVec
	deliveryLatency  *prometheus.HistogramVec
	settled          *prometheus.CounterVec
	inFlight         *prometheus.GaugeVec
	stalled          *prometheus.GaugeVec
	replays          *prometheus.CounterVec
	firstReplays     *prometheus.CounterVec
	breakers         *prometheus.GaugeVec
	shutOperations   *prometheus.GaugeVec
	paused           *prometheus.GaugeVec
	timeout          *prometheus.GaugeVec
	concurrency      *prometheus.GaugeVec
}

func newObserver(providers []dispatch.Provider, native bool, log *slog.Logger, registerer prometheus.Registerer) *observer {
	metrics := newMetrics(native, registerer)
	o := &observer{metrics: metrics, log: log, series: newSeriesByEnding(metrics, log.Handler()), generations: map[string]int{}, unknownTold: map[string]time.Time{}}
	o.serve(providers)
	o.metrics.announce(dispatch.Provider{Name: unconfigured})
	return o
}

func newMetrics(native bool, registerer prometheus.Registerer) *metrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "drainer", Name: name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "drainer", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		o := prometheus.HistogramOpts{Namespace: "drainer", Name: name, Help: help, Buckets: buckets}
		if native { // a bucket is a tenth wider than the one below it, and there are 100 at most
			o.NativeHistogramBucketFactor, o.NativeHistogramMaxBucketNumber, o.NativeHistogramMinResetDuration = 1.1, 100, time.Hour
		}
		return o
	}
	m := &metrics{
		batchDuration:    prometheus.NewHistogram(histogram("batch_duration_seconds", "One settle-and-claim commit.", prometheus.ExponentialBuckets(0.0005, 2, 15))),
		batchFailures:    prometheus.NewCounter(prometheus.CounterOpts{Namespace: "drainer", Name: "batch_failures_total", Help: "Commits that failed: the database was away, or too slow."}),
		claimed:          counter("claimed_rows_total", "Rows claimed.", "provider"),
		leasesLost:       counter("leases_lost_total", "Outcomes refused because the row's claim was gone.", "provider"),
		attempts:         newAttempts(),
		dispatchDuration: prometheus.NewHistogramVec(histogram("dispatch_duration_seconds", "One dispatch, from call to outcome.", prometheus.ExponentialBuckets(0.001, 2, 17)), []string{"provider"}),
		deliveryLatency: prometheus.NewHistogramVec(histogram("delivery_latency_seconds", "From enqueue, or not_before, to completion.",
			[]float64{0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 900, 3600}), // the alerts' objective is 60
			[]string{"provider"}),
		settled:        counter("settled_total", "Intents by the status that they were settled with.", "provider", "status"),
		inFlight:       gauge("in_flight", "Rows claimed by this process and not yet ended.", "provider"),
		stalled:        gauge("lane_stalled", "Lanes of the provider whose batches have failed for over a minute.", "provider"),
		replays:        counter("replays_total", "Answers that the provider gave from its memory of the key.", "provider"),
		firstReplays:   counter("first_replays_total", "Intents whose first attempt the provider answered from its memory of the key.", "provider"),
		breakers:       gauge("circuit_breaker_state", "1 for the state that the provider's shared breaker is in.", "provider", "state"),
		shutOperations: gauge("operation_circuit_breaker_open", "1 while the operation's shared breaker is not closed; absent until it first opens.", "provider", "operation"),
		paused:         gauge("provider_paused", "1 while an operator has paused the provider.", "provider"),
		timeout:        gauge("provider_timeout_seconds", "Configured limit of one dispatch.", "provider"),
		concurrency:    gauge("provider_concurrency", "Configured limit of dispatches under way, over all replicas.", "provider"),
	}
	registerer.MustRegister(m.batchDuration, m.batchFailures, m.claimed, m.leasesLost,
		m.attempts, m.dispatchDuration, m.deliveryLatency, m.settled, m.inFlight, m.stalled, m.replays, m.firstReplays, m.breakers, m.shutOperations, m.paused, m.timeout, m.concurrency)
	return m
}

// announce creates a provider's own series at zero, so that rate() sees the first increase. The series of its tools, of
// which there may be thousands, are made when they are needed.
func (m *metrics) announce(provider dispatch.Provider) {
	for _, counter := range []*prometheus.CounterVec{m.claimed, m.leasesLost, m.replays, m.firstReplays} {
		counter.WithLabelValues(provider.Name)
	}
	m.inFlight.WithLabelValues(provider.Name)
	m.stalled.WithLabelValues(provider.Name)
	for _, status := range settledStatuses {
		m.settled.WithLabelValues(provider.Name, string(status))
	}
	for _, outcome := range dispatch.Outcomes() {
		m.attempts.of(provider.Name, unconfigured, outcome)
	}
	if provider.Name != unconfigured {
		m.dispatchDuration.WithLabelValues(provider.Name)
		m.deliveryLatency.WithLabelValues(provider.Name)
		m.timeout.WithLabelValues(provider.Name).Set(provider.Timeout.Seconds())
		m.concurrency.WithLabelValues(provider.Name).Set(float64(provider.Concurrency))
	}
}

// conceal removes gauges whose value is not known any more. Counters stay, since they count what happened.
func (m *metrics) conceal(provider string) {
	for _, gauge := range []*prometheus.GaugeVec{m.breakers, m.shutOperations, m.paused, m.timeout, m.concurrency} {
		gauge.DeletePartialMatch(prometheus.Labels{"provider": provider})
	}
}

// concealShutOperations comes before a session's first look at the fleet: it has all operations open until the fleet says
// otherwise, and of an operation that is gone the fleet says nothing.
func (o *observer) concealShutOperations(upstreams map[string]*upstream) {
	for provider := range upstreams {
		o.metrics.shutOperations.DeletePartialMatch(prometheus.Labels{"provider": provider})
	}
}

// observer counts and logs attempts. It gets whole rows, but shows no payload, key
// part or header of them. An operation without a configured name is not counted by
// name.
type observer struct {
	metrics   *metrics
	log       *slog.Logger
	providers atomic.Pointer[map[string]dispatch.Provider] // of the newest configuration
	series    *seriesByEnding

	mu          sync.Mutex
	unknownTold map[string]time.Time // when an unknown operation was last logged, by provider: only configured ones come here
	generations map[string]int       // that have not ended, by provider
}

// serve shows the series of the providers that are configured from now on, and conceals the gauges of those that no
// longer are.
func (o *observer) serve(providers []dispatch.Provider) {
	o.mu.Lock()
	defer o.mu.Unlock()
	configured := make(map[string]dispatch.Provider, len(providers))
	for _, provider := range providers {
		configured[provider.Name] = provider
		o.generations[provider.Name]++
		o.metrics.announce(provider)
	}
	o.providers.Store(&configured)
	for name := range o.generations {
		if _, is := configured[name]; !is {
			o.metrics.conceal(name)
		}
	}
}

// forget is called at a generation's end. A provider that no generation serves any more has nothing in flight.
func (o *observer) forget(providers []dispatch.Provider) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, provider := range providers {
		o.generations[provider.Name]--
		if o.generations[provider.Name] == 0 {
			delete(o.generations, provider.Name)
			o.metrics.conceal(provider.Name)
			o.metrics.inFlight.DeleteLabelValues(provider.Name)
			o.metrics.stalled.DeleteLabelValues(provider.Name)
		}
	}
}

func (o *observer) configured() map[string]dispatch.Provider { return *o.providers.Load() }

func (o *observer) committed(took time.Duration, err error) {
	o.metrics.batchDuration.Observe(took.Seconds())
	if err != nil {
		o.metrics.batchFailures.Inc()
	}
}

func (o *observer) claimed(provider string, rows int) {
	o.metrics.claimed.WithLabelValues(provider).Add(float64(rows))
	o.metrics.inFlight.WithLabelValues(provider).Add(float64(rows))
}

// ended counts down for claimed rows, dispatched or released.
func (o *observer) ended(provider string, rows int) {
	o.metrics.inFlight.WithLabelValues(provider).Sub(float64(rows))
}

func (o *observer) stalled(provider string, is bool) {
	if is {
		o.metrics.stalled.WithLabelValues(provider).Inc()
		o.log.Error("a lane makes no progress: its batches have failed for over a minute", "provider", provider)
		return
	}
	o.metrics.stalled.WithLabelValues(provider).Dec()
}

// attempted counts an attempt and logs its line. Rows that a shutdown releases get no line, since nothing was
// attempted.
//
// operation is the tool that was called: for a lookup, the tool that answers it.
func (o *observer) attempted(s *Settlement, operation string) {
	if s.Result.Replayed {
		o.metrics.replays.WithLabelValues(s.Row.server()).Inc()
	}
	if s.firstReplay() {
		o.metrics.firstReplays.WithLabelValues(s.Row.server()).Inc()
	}
	o.series.of(endingOf(s, operation, o.label(s.Row.Tuple.Provider()))).count(s)
}

func (o *observer) label(provider string) string {
	if _, configured := o.configured()[provider]; configured {
		return provider
	}
	return unconfigured
}

// gate shows where a provider's breaker stands; a change is worth a line.
func (o *observer) gate(before, now Gate) {
	for _, state := range []BreakerState{BreakerClosed, BreakerOpen, BreakerHalfOpen} {
		value := 0.0
		if now.Breaker == state {
			value = 1
		}
		o.metrics.breakers.WithLabelValues(now.Name, string(state)).Set(value)
	}
	o.metrics.paused.WithLabelValues(now.Name).Set(0)
	if now.Paused {
		o.metrics.paused.WithLabelValues(now.Name).Set(1)
	}
	log := o.log.With("provider", now.Name)
	switch {
	case now.Paused && !before.Paused:
		log.Warn("provider paused")
	case before.Paused && !now.Paused:
		log.Warn("provider resumed")
	}
	if now.Breaker != before.Breaker {
		log.Warn("circuit breaker "+stateInWords(now.Breaker), "reason", now.Reason, "open_for_seconds", now.OpenFor.Seconds())
	}
}

// operationGate shows whether an operation is shut; a change is worth a line.
func (o *observer) operationGate(before, now Gate) {
	provider, operation, _ := strings.Cut(now.Name, "/")
	shut := 0.0
	if now.Breaker != BreakerClosed {
		shut = 1
	}
	o.metrics.shutOperations.WithLabelValues(provider, operation).Set(shut)
	if now.Breaker != before.Breaker {
		o.log.Warn("circuit breaker of an operation "+stateInWords(now.Breaker),
			"provider", provider, "operation", operation, "reason", now.Reason, "open_for_seconds", now.OpenFor.Seconds())
	}
}

func stateInWords(state BreakerState) string { return strings.ReplaceAll(string(state), "_", " ") }

// unconfigured logs at most once a minute for each provider, since any agent can enqueue a million such rows.
func (o *observer) unconfigured(provider string, row *Row) {
	o.mu.Lock()
	due := time.Since(o.unknownTold[provider]) >= time.Minute
	if due {
		o.unknownTold[provider] = time.Now()
	}
	o.mu.Unlock()
	if !due {
		return
	}
	o.log.Warn("no tool is configured for a row's operation; it waits for a worker that knows it",
		"provider", provider, "intent_id", row.IntentID)
}

// expired counts the rows, and logs one line for each provider.
func (o *observer) expired(settlements []Settlement, cause string) {
	rows := map[string]int{}
	for i := range settlements {
		provider := settlements[i].Row.Tuple.Provider()
		rows[provider]++
		o.metrics.settled.WithLabelValues(o.label(provider), string(settlements[i].Decision.Status)).Inc()
	}
	for provider, count := range rows {
		o.log.Warn("intents have ended because "+cause+" for too long", "provider", provider, "intents", count)
	}
}

func (o *observer) panicked(provider string, row *Row, kind string, stack []byte) {
	o.log.Error("adapter panicked; the attempt counts as ambiguous",
		"provider", provider, "intent_id", row.IntentID, "panic_type", kind, "stack", string(stack))
}

// refused settlements belong to rows that another worker took over.
func (o *observer) refused(provider string, refused []Settlement) {
	o.metrics.leasesLost.WithLabelValues(provider).Add(float64(len(refused)))
	for _, s := range refused {
		o.log.Error("an outcome came after its lease was lost; its row had been taken over",
			"provider", provider, "intent_id", s.Row.IntentID, "attempt", s.Row.Attempt,
			"idempotency_key", s.Row.idempotencyKey(), "outcome", string(s.Result.Outcome))
	}
}

func (o *observer) recovered(settlements []Settlement) {
	for i := range settlements {
		s := &settlements[i]
		provider, status := s.Row.server(), s.Decision.Status
		o.metrics.attempts.of(provider, o.operation(s.Row.Tuple), dispatch.Lost).Inc()
		if isSettled(status, s.Decision.Lookup) {
			o.metrics.settled.WithLabelValues(o.label(s.Row.Tuple.Provider()), string(status)).Inc()
		}
		o.log.Log(context.Background(), max(slog.LevelWarn, levelOf(status, s.Decision.Lookup)), "recovered a row of a dead worker", "provider", provider, "intent_id", s.Row.IntentID,
			"attempt", s.Row.Attempt, "idempotency_key", s.Row.idempotencyKey(), "status", string(status))
	}
}

func (o *observer) operation(tuple dispatch.Tuple) string {
	if _, configured := o.configured()[tuple.Provider()].Tools[tuple.Operation()]; configured {
		return tuple.Operation()
	}
	return unconfigured
}

// ending is how an attempt ended, as far as counters and log lines distinguish it. There are few, since only
// configured tools are attempted.
type ending struct {
	provider  string // whose row
	settledAs string // the label for the settled counter: its provider, while that is configured
	server    string // who was called
	operation string // the operation that was called: for a lookup, the tool that answers it
	outcome   dispatch.Outcome
	status    dispatch.Status
	looksUp   bool // a lookup follows
}

func endingOf(s *Settlement, operation, settledAs string) ending {
	return ending{
		provider:  s.Row.Tuple.Provider(),
		settledAs: settledAs,
		server:    s.Row.server(),
		operation: operation,
		outcome:   s.Result.Outcome,
		status:    s.Decision.Status,
		looksUp:   s.Decision.Lookup,
	}
}

// endingSeries holds the series of an ending. Finding a series by its labels takes longer than counting, so it is done
// once.
type endingSeries struct {
	line     attemptLine
	attempts prometheus.Counter
	took     prometheus.Observer
	settled  prometheus.Counter  // nil while an attempt is to follow
	latency  prometheus.Observer // nil unless it completed
}

// seriesByEnding caches the series of all endings so far.
type seriesByEnding struct {
	metrics *metrics
	lines   slog.Handler

	mu  sync.RWMutex
	all map[ending]*endingSeries
}

func newSeriesByEnding(metrics *metrics, lines slog.Handler) *seriesByEnding {
	return &seriesByEnding{metrics: metrics, lines: lines, all: map[ending]*endingSeries{}}
}

func (t *seriesByEnding) of(e ending) *endingSeries {
	t.mu.RLock()
	known := t.all[e]
	t.mu.RUnlock()
	if known != nil {
		return known
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[e] == nil {
		t.all[e] = t.find(e)
	}
	return t.all[e]
}

func (t *seriesByEnding) find(e ending) *endingSeries {
	found := &endingSeries{
		line:     newAttemptLine(t.lines, e),
		attempts: t.metrics.attempts.of(e.server, e.operation, e.outcome),
		took:     t.metrics.dispatchDuration.WithLabelValues(e.server),
	}
	if isSettled(e.status, e.looksUp) {
		found.settled = t.metrics.settled.WithLabelValues(e.settledAs, string(e.status))
	}
	if e.status == dispatch.StatusCompleted {
		found.latency = t.metrics.deliveryLatency.WithLabelValues(e.provider)
	}
	return found
}

func (t *endingSeries) count(s *Settlement) {
	t.attempts.Inc()
	observe(t.took, s.FinishedAt.Sub(s.StartedAt), s.Row.spans)
	if t.settled != nil {
		t.settled.Inc()
	}
	if t.latency != nil {
		observe(t.latency, s.Row.SinceEnqueue+s.FinishedAt.Sub(s.Row.ClaimedAt), s.Row.spans)
	}
	t.line.write(s)
}

// observe sets the trace of a recorded attempt as the bucket's exemplar, so that a dashboard leads from a slow bucket to
// a slow attempt.
func observe(histogram prometheus.Observer, took time.Duration, spans *attemptSpans) {
	if id := spans.traceID(); id != "" {
		histogram.(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": id})
		return
	}
	histogram.Observe(took.Seconds())
}

func elapsed(since time.Time) time.Duration { return between(since, time.Now()) }

// between is the time from one moment to another, by the monotonic or the wall clock, whichever shows more. The
// monotonic clock stops while a machine is suspended, and the wall clock can be set back. Leases and keys
// must not last longer by either.
func between(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// attemptLine writes the log line of an attempt. The attributes that all attempts of an ending share are rendered once.
// It calls the handler directly, since a logger would look up the caller for each line.
type attemptLine struct {
	level   slog.Level
	handler slog.Handler
}

func newAttemptLine(handler slog.Handler, e ending) attemptLine {
	return attemptLine{levelOf(e.status, e.looksUp), handler.WithAttrs([]slog.Attr{
		slog.String("provider", e.server),
		slog.String("operation", e.operation),
		slog.String("outcome", string(e.outcome)),
		slog.String("status", string(e.status)),
	})}
}

// write leaves out optional attributes that are zero or empty. Its numbers are integers, since formatting a fraction
// would take longer than all the rest.
func (l attemptLine) write(s *Settlement) {
	level, parked := l.level, s.asksForTooLong()
	if parked {
		level = max(level, slog.LevelWarn)
	}
	ctx := context.Background()
	if !l.handler.Enabled(ctx, level) {
		return
	}
	line := slog.NewRecord(s.FinishedAt, level, "attempt", 0)
	line.AddAttrs(
		slog.Int64("intent_id", s.Row.IntentID),
		slog.Int("attempt", s.Row.Attempt),
		slog.String("idempotency_key", s.Row.idempotencyKey()),
		slog.Int64("took_us", s.FinishedAt.Sub(s.StartedAt).Microseconds()),
	)
	if s.Row.Lookup {
		line.AddAttrs(slog.Bool("lookup", true))
	}
	if s.Result.HTTPStatus != 0 {
		line.AddAttrs(slog.Int("http_status", s.Result.HTTPStatus))
	}
	if s.Result.ErrorClass != "" {
		line.AddAttrs(slog.String("error", s.Result.ErrorClass))
	}
	if s.Result.Replayed {
		line.AddAttrs(slog.Bool("replayed", true))
	}
	if s.Result.ProviderRef != "" {
		line.AddAttrs(slog.String("provider_ref", s.Result.ProviderRef))
	}
	if parked {
		line.AddAttrs(slog.Int64("asked_to_wait_us", s.Result.RetryAfter.Microseconds()))
	}
	if s.Decision.Back() {
		line.AddAttrs(slog.Int64("retry_in_us", s.Decision.Delay.Microseconds()))
	}
	_ = l.handler.Handle(ctx, line) // there is no other place to report it
}

// levelOf returns warn or error only for outcomes that no process will resolve by itself.
func levelOf(status dispatch.Status, looksUp bool) slog.Level {
	switch {
	case status == dispatch.StatusUnknown && !looksUp:
		return slog.LevelError
	case status == dispatch.StatusUnknown, status == dispatch.StatusFailed:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}
