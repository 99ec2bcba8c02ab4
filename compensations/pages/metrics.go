package pages

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// outcome is how one try to send a page ended.
type outcome string

const (
	delivered outcome = "delivered"
	refused   outcome = "refused"
	unreached outcome = "unreachable"
)

type metrics struct {
	pages *prometheus.CounterVec
	open  *openGauge
}

func newMetrics(channels []Channel, registerer prometheus.Registerer) *metrics {
	m := &metrics{
		pages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "drainer", Name: "pages_total", Help: "Tries to tell a channel of an incident, by how they ended.",
		}, []string{"channel", "outcome"}),
		open: newOpenGauge(),
	}
	for _, channel := range channels {
		for _, outcome := range []outcome{delivered, refused, unreached} {
			m.pages.WithLabelValues(channel.Name, string(outcome))
		}
	}
	registerer.MustRegister(m.pages, m.open)
	return m
}

func (m *metrics) sent(channel string, ended outcome) {
	m.pages.WithLabelValues(channel, string(ended)).Inc()
}

// sampleLife is how long a count is shown. Any process may be the one to count
// next, and what the others knew must not stand for ever.
const sampleLife = 30 * time.Second

// openGauge shows how many incidents are open, where this process has counted
// them lately.
type openGauge struct {
	description *prometheus.Desc

	mu        sync.Mutex
	counts    map[Kind]int
	countedAt time.Time
}

func newOpenGauge() *openGauge {
	return &openGauge{description: prometheus.NewDesc("drainer_incidents_open",
		"Incidents that nobody has acknowledged or resolved; take the maximum over replicas.", []string{"kind"}, nil)}
}

func (g *openGauge) set(counts map[Kind]int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counts, g.countedAt = counts, time.Now()
}

// Describe implements [prometheus.Collector].
func (g *openGauge) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- g.description }

// Collect implements [prometheus.Collector].
func (g *openGauge) Collect(values chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.countedAt) > sampleLife {
		return
	}
	for _, kind := range Kinds() {
		values <- prometheus.MustNewConstMetric(g.description, prometheus.GaugeValue, float64(g.counts[kind]), string(kind))
	}
}
