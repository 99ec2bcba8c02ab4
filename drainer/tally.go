package drainer

import (
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
)

// ending is how an attempt ended, as far as counters and lines tell it apart.
// There are few: an attempt is made of configured tools only.
type ending struct {
	provider  string // whose row
	settledAs string // the label of what became of it: its provider, while that is configured
	server    string // who was called
	operation string // what was called: for a lookup, the tool that answers it
	outcome   dispatch.Outcome
	status    dispatch.Status
	looksUp   bool // a lookup follows
}

func endingOf(s *Settlement, operation, settledAs string) ending {
	return ending{
		provider:  s.Row.Tuple.Provider(),
		settledAs: settledAs,
		server:    s.Row.server(),
		operation: operation,
		outcome:   s.Result.Outcome,
		status:    s.Decision.Status,
		looksUp:   s.Decision.Lookup,
	}
}

// tally is what an ending counts in, found once: to find a series by its labels
// takes longer than to count.
type tally struct {
	line     attemptLine
	attempts prometheus.Counter
	took     prometheus.Observer
	settled  prometheus.Counter  // nil while an attempt is to follow
	latency  prometheus.Observer // nil unless it completed
}

// tallies are those of all endings so far.
type tallies struct {
	metrics *metrics
	lines   slog.Handler

	mu  sync.RWMutex
	all map[ending]*tally
}

func newTallies(metrics *metrics, lines slog.Handler) *tallies {
	return &tallies{metrics: metrics, lines: lines, all: map[ending]*tally{}}
}

func (t *tallies) of(e ending) *tally {
	t.mu.RLock()
	known := t.all[e]
	t.mu.RUnlock()
	if known != nil {
		return known
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[e] == nil {
		t.all[e] = t.find(e)
	}
	return t.all[e]
}

func (t *tallies) find(e ending) *tally {
	found := &tally{
		line:     newAttemptLine(t.lines, e),
		attempts: t.metrics.attempts.WithLabelValues(e.server, e.operation, string(e.outcome)),
		took:     t.metrics.dispatchDuration.WithLabelValues(e.server),
	}
	if isSettled(e.status, e.looksUp) {
		found.settled = t.metrics.settled.WithLabelValues(e.settledAs, string(e.status))
	}
	if e.status == dispatch.StatusCompleted {
		found.latency = t.metrics.deliveryLatency.WithLabelValues(e.provider)
	}
	return found
}

func (t *tally) count(s *Settlement) {
	t.attempts.Inc()
	t.took.Observe(s.FinishedAt.Sub(s.StartedAt).Seconds())
	if t.settled != nil {
		t.settled.Inc()
	}
	if t.latency != nil {
		t.latency.Observe((s.Row.SinceEnqueue + s.FinishedAt.Sub(s.Row.ClaimedAt)).Seconds())
	}
	t.line.write(s)
}
