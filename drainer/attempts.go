package drainer

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
)

// attempts counts attempts by provider, operation and outcome. If all series of thousands of tools were made
// at the start, there would be tens of thousands, nearly all of them 0 forever. So a series is made when
// its first attempt ends, and the next scrapes show it as 0 whatever it has counted by then: rate()
// sees an increase only from a value that it has seen.
type attempts struct {
	*prometheus.CounterVec // not registered itself
	zero                   *prometheus.Desc

	mu    sync.Mutex
	shown map[[3]string]int // by provider, operation and outcome: how many scrapes saw the 0
}

// scrapers is how many replicas of Prometheus may scrape a daemon. A single one sees the 0 twice.
const scrapers = 2

func newAttempts() *attempts {
	labels := []string{"provider", "operation", "outcome"}
	options := prometheus.CounterOpts{
		Namespace: "drainer", Name: "dispatch_attempts_total", Help: "Attempts by how they ended.",
	}
	return &attempts{
		CounterVec: prometheus.NewCounterVec(options, labels),
		zero:       prometheus.NewDesc("drainer_dispatch_attempts_total", options.Help, labels, nil),
		shown:      map[[3]string]int{},
	}
}

// of returns the counter of an outcome. It also makes the counter of completed attempts, so that the share of
// failures can be computed for a tool that never succeeded.
func (a *attempts) of(provider, operation string, outcome dispatch.Outcome) prometheus.Counter {
	key := [3]string{provider, operation, string(outcome)}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, made := range [][3]string{key, {provider, operation, string(dispatch.Completed)}} {
		if _, known := a.shown[made]; !known {
			a.shown[made] = 0
		}
	}
	return a.WithLabelValues(key[:]...)
}

// Describe implements prometheus.Collector in place of the embedded vector.
func (a *attempts) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- a.zero }

// Collect shows a new series as 0, once to each scraper.
func (a *attempts) Collect(metrics chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, times := range a.shown {
		if times == scrapers {
			metrics <- a.WithLabelValues(key[:]...)
			continue
		}
		a.shown[key]++
		metrics <- prometheus.MustNewConstMetric(a.zero, prometheus.CounterValue, 0, key[:]...)
	}
}

// Counters returns this daemon's attempts by outcome and their durations. Reading it does not count as a scrape, so
// a new series shows its count at once.
func (d *Daemon) Counters() prometheus.Gatherer {
	counters := prometheus.NewRegistry()
	counters.MustRegister(d.observer.metrics.attempts.CounterVec, d.observer.metrics.dispatchDuration)
	return counters
}
