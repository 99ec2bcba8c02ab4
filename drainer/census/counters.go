package census

import "github.com/prometheus/client_golang/prometheus"

// counters hold what is counted once, by whoever led at the time: the fleet's
// add up.
type counters struct {
	duplicates *prometheus.CounterVec
	collisions *prometheus.CounterVec
}

func newCounters() *counters {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "drainer", Name: name, Help: help}, []string{"provider"})
	}
	return &counters{
		duplicates: counter("duplicates_total", "Enqueues of a key that was already there."),
		collisions: counter("idempotency_key_collisions_total", "Enqueues refused because their key holds another payload; must stay zero."),
	}
}

// announce counts each provider's from 0, so that the first increase is seen as one.
func (c *counters) announce(labels []string) {
	for _, label := range labels {
		c.duplicates.WithLabelValues(label)
		c.collisions.WithLabelValues(label)
	}
}

func (c *counters) add(sample *Sample, configured *configuration) {
	for _, duplicates := range sample.Duplicates {
		c.duplicates.WithLabelValues(configured.label(duplicates.Provider)).Add(float64(duplicates.Rows))
	}
	if sample.Collisions.New > 0 {
		c.collisions.WithLabelValues(configured.label(sample.Collisions.LastProvider)).Add(float64(sample.Collisions.New))
	}
}
