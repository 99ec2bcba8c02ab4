package drainer

import (
	"log/slog"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/prometheus/client_golang/prometheus"
)

// unconfigured is the label of everything that the configuration does not
// name: a row must never create a label.
const unconfigured = "unconfigured"

// settledStatuses are what may become of an intent here. Operators and sagas
// give it others.
var settledStatuses = []dispatch.Status{dispatch.StatusCompleted, dispatch.StatusFailed, dispatch.StatusUnknown}

// isSettled holds for an intent that no attempt follows.
func isSettled(status dispatch.Status, looksUp bool) bool {
	return slices.Contains(settledStatuses, status) && !looksUp
}

type metrics struct {
	turnDuration     prometheus.Histogram
	turnFailures     prometheus.Counter
	claimed          *prometheus.CounterVec
	leasesLost       *prometheus.CounterVec
	attempts         *prometheus.CounterVec
	dispatchDuration *prometheus.HistogramVec
	deliveryLatency  *prometheus.HistogramVec
	settled          *prometheus.CounterVec
	inFlight         *prometheus.GaugeVec
	replays          *prometheus.CounterVec
	breakers         *prometheus.GaugeVec
	paused           *prometheus.GaugeVec
	timeout          *prometheus.GaugeVec
	concurrency      *prometheus.GaugeVec
}

func newObserver(providers []Provider, log *slog.Logger, registerer prometheus.Registerer) *observer {
	metrics := newMetrics(registerer)
	o := &observer{metrics: metrics, log: log, tallies: newTallies(metrics, log.Handler()), generations: map[string]int{}}
	o.serve(providers)
	o.metrics.announce(Provider{Name: unconfigured})
	return o
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "drainer", Name: name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "drainer", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, from, factor float64, count int) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: "drainer", Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(from, factor, count)}
	}
	m := &metrics{
		turnDuration:     prometheus.NewHistogram(histogram("turn_duration_seconds", "One settle-and-claim commit.", 0.0005, 2, 15)),
		turnFailures:     prometheus.NewCounter(prometheus.CounterOpts{Namespace: "drainer", Name: "turn_failures_total", Help: "Commits that failed: the database was away, or too slow."}),
		claimed:          counter("claimed_rows_total", "Rows claimed.", "provider"),
		leasesLost:       counter("leases_lost_total", "Outcomes refused because the row's claim was gone.", "provider"),
		attempts:         counter("dispatch_attempts_total", "Attempts by how they ended.", "provider", "operation", "outcome"),
		dispatchDuration: prometheus.NewHistogramVec(histogram("dispatch_duration_seconds", "One dispatch, from call to outcome.", 0.001, 2, 17), []string{"provider"}),
		deliveryLatency:  prometheus.NewHistogramVec(histogram("delivery_latency_seconds", "From enqueue to completion.", 0.002, 2.5, 16), []string{"provider"}),
		settled:          counter("settled_total", "Intents by what became of them.", "provider", "status"),
		inFlight:         gauge("in_flight", "Rows claimed by this process and not yet ended.", "provider"),
		replays:          counter("replays_total", "Answers that the provider gave from its memory of the key.", "provider"),
		breakers:         gauge("circuit_breaker_state", "1 for the state that the provider's shared breaker is in.", "provider", "state"),
		paused:           gauge("provider_paused", "1 while an operator has paused the provider.", "provider"),
		timeout:          gauge("provider_timeout_seconds", "The longest that one dispatch may take, as configured.", "provider"),
		concurrency:      gauge("provider_concurrency", "Dispatches that may be under way at once, over all replicas, as configured.", "provider"),
	}
	registerer.MustRegister(m.turnDuration, m.turnFailures, m.claimed, m.leasesLost,
		m.attempts, m.dispatchDuration, m.deliveryLatency, m.settled, m.inFlight, m.replays, m.breakers, m.paused, m.timeout, m.concurrency)
	return m
}

// announce creates every series of a provider at zero, so that the first increase
// is seen as one.
func (m *metrics) announce(provider Provider) {
	for _, counter := range []*prometheus.CounterVec{m.claimed, m.leasesLost, m.replays} {
		counter.WithLabelValues(provider.Name)
	}
	m.inFlight.WithLabelValues(provider.Name)
	for _, status := range settledStatuses {
		m.settled.WithLabelValues(provider.Name, string(status))
	}
	if provider.Name != unconfigured {
		m.timeout.WithLabelValues(provider.Name).Set(provider.Timeout.Seconds())
		m.concurrency.WithLabelValues(provider.Name).Set(float64(provider.Concurrency))
	}
	for operation := range provider.Tools {
		for _, outcome := range dispatch.Outcomes() {
			m.attempts.WithLabelValues(provider.Name, operation, string(outcome))
		}
	}
}

// conceal takes away what is not known any more. Counters stay: what they
// counted did happen.
func (m *metrics) conceal(provider string) {
	for _, gauge := range []*prometheus.GaugeVec{m.breakers, m.paused, m.timeout, m.concurrency} {
		gauge.DeletePartialMatch(prometheus.Labels{"provider": provider})
	}
}
