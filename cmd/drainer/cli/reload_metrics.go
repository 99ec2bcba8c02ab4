package cli

import "github.com/prometheus/client_golang/prometheus"

type reloadMetrics struct {
	reloads    *prometheus.CounterVec
	successful prometheus.Gauge
	succeeded  prometheus.Gauge
}

// newReloadMetrics takes the start for a success: there is no daemon without one.
func newReloadMetrics(registerer prometheus.Registerer) *reloadMetrics {
	m := &reloadMetrics{
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "drainer", Name: "config_reloads_total", Help: "Reloads of the configuration, by whether it was applied or rejected.",
		}, []string{"outcome"}),
		successful: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "drainer", Name: "config_last_reload_successful", Help: "1 while the configuration in force is the newest; 0 after one was rejected.",
		}),
		succeeded: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "drainer", Name: "config_last_reload_success_timestamp_seconds", Help: "When the configuration in force was applied.",
		}),
	}
	for _, outcome := range []string{"applied", "rejected"} {
		m.reloads.WithLabelValues(outcome)
	}
	m.succeed()
	registerer.MustRegister(m.reloads, m.successful, m.succeeded)
	return m
}

func (m *reloadMetrics) applied() {
	m.reloads.WithLabelValues("applied").Inc()
	m.succeed()
}

func (m *reloadMetrics) rejected() {
	m.reloads.WithLabelValues("rejected").Inc()
	m.successful.Set(0)
}

func (m *reloadMetrics) succeed() {
	m.successful.Set(1)
	m.succeeded.SetToCurrentTime()
}
