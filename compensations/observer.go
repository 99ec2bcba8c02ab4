package compensations

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// observer shows what sagas come to. Each action is counted by the process
// that took it, so that the fleet's counters add up.
type observer struct {
	outcomes *prometheus.CounterVec
	log      *slog.Logger
	unknown  rate.Sometimes // a saga is looked at again every other second
}

// outcomes are what an action means for the one who watches.
var outcomes = map[Action]string{Undo: "undo_enqueued", Fail: "compensation_failed", Finish: "compensated"}

func newObserver(log *slog.Logger, registerer prometheus.Registerer) *observer {
	o := &observer{log: log, unknown: rate.Sometimes{First: 1, Interval: time.Minute}, outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "drainer", Name: "compensations_total", Help: "What sagas came to, and the undos that they enqueued.",
	}, []string{"outcome"})}
	for _, outcome := range outcomes {
		o.outcomes.WithLabelValues(outcome)
	}
	registerer.MustRegister(o.outcomes)
	return o
}

func (o *observer) took(decided Decision) {
	if decided.why == unknownTool {
		o.unknown.Do(func() {
			o.log.Warn("a saga waits for a process that knows a tool which is not configured here", "intent_id", decided.Step.IntentID)
		})
	}
	outcome, notable := outcomes[decided.Action]
	if !notable {
		return
	}
	o.outcomes.WithLabelValues(outcome).Inc()
	level := slog.LevelInfo
	if decided.Action == Fail {
		level = slog.LevelError
	}
	o.log.Log(context.Background(), level, "saga", "outcome", outcome, "intent_id", decided.Step.IntentID, "error", string(decided.why))
}
