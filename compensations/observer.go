package compensations

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// observer shows what sagas come to. Each action is counted by the process
// that took it, so that the fleet's counters add up.
type observer struct {
	outcomes *prometheus.CounterVec
	log      *slog.Logger
}

// outcomes are what an action means for the one who watches.
var outcomes = map[action]string{undo: "undo_enqueued", fail: "compensation_failed", finish: "compensated"}

func newObserver(log *slog.Logger, registerer prometheus.Registerer) *observer {
	o := &observer{log: log, outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "drainer", Name: "compensations_total", Help: "What sagas came to, and the undos that they enqueued.",
	}, []string{"outcome"})}
	for _, outcome := range outcomes {
		o.outcomes.WithLabelValues(outcome)
	}
	registerer.MustRegister(o.outcomes)
	return o
}

func (o *observer) took(decided decision) {
	outcome, notable := outcomes[decided.action]
	if !notable {
		return
	}
	o.outcomes.WithLabelValues(outcome).Inc()
	level := slog.LevelInfo
	if decided.action == fail {
		level = slog.LevelError
	}
	o.log.Log(context.Background(), level, "saga", "outcome", outcome, "intent_id", decided.step.IntentID, "error", string(decided.why))
}
