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

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		pages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "drainer", Name: "pages_total", Help: "Tries to tell a channel of an incident, by how they ended.",
		}, []string{"channel", "outcome"}),
		open: newOpenGauge(),
	}
	registerer.MustRegister(m.pages, m.open)
	return m
}

// announce counts for each channel from 0.
func (m *metrics) announce(channels []Channel) {
	for _, channel := range channels {
		for _, outcome := range []outcome{delivered, refused, unreached} {
			m.pages.WithLabelValues(channel.Name, string(outcome))
		}
	}
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
	*prometheus.GaugeVec

	mu        sync.Mutex
	countedAt time.Time
}

func newOpenGauge() *openGauge {
	return &openGauge{GaugeVec: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "drainer", Name: "incidents_open", Help: "Incidents that nobody has acknowledged or resolved; take the maximum over replicas.",
	}, []string{"kind"})}
}

func (g *openGauge) set(counts map[Kind]int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, kind := range Kinds() {
		g.WithLabelValues(string(kind)).Set(float64(counts[kind]))
	}
	g.countedAt = time.Now()
}

// Collect shows nothing that is old.
func (g *openGauge) Collect(values chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.countedAt) <= sampleLife {
		g.GaugeVec.Collect(values)
	}
}
