package drainer

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
)

// attempts counts by provider, operation and outcome. Made at the start, the series of
// thousands of tools would be tens of thousands, nearly all of them 0 forever. So one is
// made when its first attempt ends, and the next scrapes show it as 0, whatever it has
// counted by then: rate() sees an increase only from a value that it has seen.
type attempts struct {
	*prometheus.CounterVec // not registered itself
	zero                   *prometheus.Desc

	mu    sync.Mutex
	shown map[[3]string]int // by provider, operation and outcome: how many scrapes saw the 0
}

// scrapers are those that take turns, as two replicas of Prometheus do. One that is alone sees
// the 0 once more.
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

// of is the counter of an ending. Where there is one, there is also that of success, so
// that the share of what failed can be told of a tool that never succeeded.
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

// Describe and Collect make it a collector in the place of its vector.
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

// Counters has this daemon's attempts by outcome, and how long they took. To read it is no
// scrape: a series need not be shown as 0 first.
func (d *Daemon) Counters() prometheus.Gatherer {
	counters := prometheus.NewRegistry()
	counters.MustRegister(d.observer.metrics.attempts.CounterVec, d.observer.metrics.dispatchDuration)
	return counters
}
