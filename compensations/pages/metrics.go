package pages

import "github.com/prometheus/client_golang/prometheus"

// outcome is how one try to send a page ended.
type outcome string

const (
	delivered outcome = "delivered"
	refused   outcome = "refused"
	unreached outcome = "unreachable"
)

type metrics struct{ pages *prometheus.CounterVec }

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		pages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "drainer", Name: "pages_total", Help: "Tries to tell a channel of an incident, by how they ended.",
		}, []string{"channel", "outcome"}),
	}
	registerer.MustRegister(m.pages)
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
