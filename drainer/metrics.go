package drainer

import (
	"log/slog"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/prometheus/client_golang/prometheus"
)

// unconfigured is the label of everything that the configuration does not
// name: a row must never create a label.
const unconfigured = "unconfigured"

type metrics struct {
	rows             *prometheus.GaugeVec
	dueRows          *prometheus.GaugeVec
	oldestDueAge     *prometheus.GaugeVec
	oldestInProgress *prometheus.GaugeVec
	turnDuration     prometheus.Histogram
	claimed          *prometheus.CounterVec
	leasesLost       *prometheus.CounterVec
	attempts         *prometheus.CounterVec
	dispatchDuration *prometheus.HistogramVec
	deliveryLatency  *prometheus.HistogramVec
	duplicates       *prometheus.CounterVec
	collisions       *prometheus.CounterVec
	inFlight         *prometheus.GaugeVec
	replays          *prometheus.CounterVec
	breakers         *prometheus.GaugeVec
}

func newObserver(providers []Provider, log *slog.Logger, registerer prometheus.Registerer) *observer {
	o := &observer{metrics: newMetrics(registerer), log: log, generations: map[string]int{}}
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
		rows:             gauge("outbox_rows", "Rows by state, sampled and counted to a bound; take the maximum over replicas.", "provider", "state"),
		dueRows:          gauge("outbox_due_rows", "Rows due now, sampled and counted to a bound; take the maximum over replicas.", "provider"),
		oldestDueAge:     gauge("outbox_oldest_due_age_seconds", "How long the oldest due row has been due.", "provider"),
		oldestInProgress: gauge("outbox_oldest_in_progress_age_seconds", "How long the oldest claim has been in progress.", "provider"),
		turnDuration:     prometheus.NewHistogram(histogram("turn_duration_seconds", "One settle-and-claim commit.", 0.0005, 2, 15)),
		claimed:          counter("claimed_rows_total", "Rows claimed.", "provider"),
		leasesLost:       counter("leases_lost_total", "Outcomes refused because the row's claim was gone.", "provider"),
		attempts:         counter("dispatch_attempts_total", "Attempts by how they ended.", "provider", "operation", "outcome"),
		dispatchDuration: prometheus.NewHistogramVec(histogram("dispatch_duration_seconds", "One dispatch, from call to outcome.", 0.001, 2, 17), []string{"provider"}),
		deliveryLatency:  prometheus.NewHistogramVec(histogram("delivery_latency_seconds", "From enqueue to completion.", 0.002, 2.5, 16), []string{"provider"}),
		duplicates:       counter("duplicates_total", "Enqueues of a key that was already there.", "provider"),
		collisions:       counter("idempotency_key_collisions_total", "Enqueues refused because their key holds another payload; must stay zero.", "provider"),
		inFlight:         gauge("in_flight", "Rows claimed by this process and not yet ended.", "provider"),
		replays:          counter("replays_total", "Answers that the provider gave from its memory of the key.", "provider"),
		breakers:         gauge("circuit_breaker_state", "1 for the state that the provider's shared breaker is in.", "provider", "state"),
	}
	registerer.MustRegister(m.rows, m.dueRows, m.oldestDueAge, m.oldestInProgress, m.turnDuration, m.claimed, m.leasesLost,
		m.attempts, m.dispatchDuration, m.deliveryLatency, m.duplicates, m.collisions, m.inFlight, m.replays, m.breakers)
	return m
}

// announce creates every series of a provider at zero, so that the first increase
// is seen as one.
func (m *metrics) announce(provider Provider) {
	for _, counter := range []*prometheus.CounterVec{m.claimed, m.leasesLost, m.duplicates, m.collisions, m.replays} {
		counter.WithLabelValues(provider.Name)
	}
	for _, gauge := range []*prometheus.GaugeVec{m.dueRows, m.oldestDueAge, m.oldestInProgress, m.inFlight} {
		gauge.WithLabelValues(provider.Name)
	}
	for _, state := range []string{"pending", "in_progress"} {
		m.rows.WithLabelValues(provider.Name, state)
	}
	for operation := range provider.Tools {
		for _, outcome := range dispatch.Outcomes() {
			m.attempts.WithLabelValues(provider.Name, operation, string(outcome))
		}
	}
}

// conceal takes away what is not sampled any more. Counters stay: what they
// counted did happen.
func (m *metrics) conceal(provider string) {
	for _, gauge := range []*prometheus.GaugeVec{m.rows, m.dueRows, m.oldestDueAge, m.oldestInProgress, m.breakers} {
		gauge.DeletePartialMatch(prometheus.Labels{"provider": provider})
	}
}
