package drainer

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// observer turns what happens into metrics and log lines. It is handed rows
// and shows none of their payload, key parts or headers: an operation counts
// under its configured name or not at all.
type observer struct {
	metrics   *metrics
	log       *slog.Logger
	providers atomic.Pointer[map[string]Provider] // of the newest configuration
	tallies   *tallies

	mu          sync.Mutex
	generations map[string]int // that have not ended, by provider
}

// serve shows every series of what is configured from now on, and conceals the
// gauges of what is not any more.
func (o *observer) serve(providers []Provider) {
	o.mu.Lock()
	defer o.mu.Unlock()
	configured := make(map[string]Provider, len(providers))
	for _, provider := range providers {
		configured[provider.Name] = provider
		o.generations[provider.Name]++
		o.metrics.announce(provider)
	}
	o.providers.Store(&configured)
	for name := range o.generations {
		if _, is := configured[name]; !is {
			o.metrics.conceal(name)
		}
	}
}

// forget is told of a generation's end: of a provider that none serves any more,
// nothing can be in flight.
func (o *observer) forget(providers []Provider) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, provider := range providers {
		o.generations[provider.Name]--
		if o.generations[provider.Name] == 0 {
			delete(o.generations, provider.Name)
			o.metrics.conceal(provider.Name)
			o.metrics.inFlight.DeleteLabelValues(provider.Name)
		}
	}
}

func (o *observer) configured() map[string]Provider { return *o.providers.Load() }

func (o *observer) turned(took time.Duration, err error) {
	o.metrics.turnDuration.Observe(took.Seconds())
	if err != nil {
		o.metrics.turnFailures.Inc()
	}
}

func (o *observer) claimed(provider string, rows int) {
	o.metrics.claimed.WithLabelValues(provider).Add(float64(rows))
	o.metrics.inFlight.WithLabelValues(provider).Add(float64(rows))
}

// ended counts down for claimed rows, dispatched or released.
func (o *observer) ended(provider string, rows int) {
	o.metrics.inFlight.WithLabelValues(provider).Sub(float64(rows))
}

// attempted counts an attempt and gives it its line. Released rows of a shutdown
// get none: nothing was attempted.
//
// operation is what was called: for a lookup, the tool that answers it.
func (o *observer) attempted(s *Settlement, operation string) {
	if s.Result.Replayed {
		o.metrics.replays.WithLabelValues(s.Row.server()).Inc()
	}
	o.tallies.of(endingOf(s, operation, o.label(s.Row.Tuple.Provider()))).count(s)
}

func (o *observer) label(provider string) string {
	if _, configured := o.configured()[provider]; configured {
		return provider
	}
	return unconfigured
}

// gate shows where a provider's breaker stands; a change is worth a line.
func (o *observer) gate(before, now Gate) {
	for _, state := range []BreakerState{BreakerClosed, BreakerOpen, BreakerHalfOpen} {
		value := 0.0
		if now.Breaker == state {
			value = 1
		}
		o.metrics.breakers.WithLabelValues(now.Provider, string(state)).Set(value)
	}
	o.metrics.paused.WithLabelValues(now.Provider).Set(0)
	if now.Paused {
		o.metrics.paused.WithLabelValues(now.Provider).Set(1)
	}
	log := o.log.With("provider", now.Provider)
	switch {
	case now.Paused && !before.Paused:
		log.Warn("provider paused")
	case before.Paused && !now.Paused:
		log.Warn("provider resumed")
	}
	if now.Breaker != before.Breaker {
		log.Warn("circuit breaker "+strings.ReplaceAll(string(now.Breaker), "_", " "), "open_for_seconds", now.OpenFor.Seconds())
	}
}

func (o *observer) unconfigured(provider string, row *Row) {
	o.log.Warn("no tool is configured for a row's operation; it waits for a worker that knows it",
		"provider", provider, "intent_id", row.IntentID)
}

func (o *observer) panicked(provider string, row *Row, kind string, stack []byte) {
	o.log.Error("adapter panicked; the attempt counts as ambiguous",
		"provider", provider, "intent_id", row.IntentID, "panic_type", kind, "stack", string(stack))
}

// refused settlements belong to rows that another worker took over.
func (o *observer) refused(provider string, refused []Settlement) {
	o.metrics.leasesLost.WithLabelValues(provider).Add(float64(len(refused)))
	for _, s := range refused {
		o.log.Error("an outcome came after its lease was lost; its row had been taken over",
			"provider", provider, "intent_id", s.Row.IntentID, "attempt", s.Row.Attempt,
			"idempotency_key", s.Row.idempotencyKey(), "outcome", string(s.Result.Outcome))
	}
}

func (o *observer) recovered(settlements []Settlement) {
	for i := range settlements {
		s := &settlements[i]
		provider, status := s.Row.server(), s.Decision.Status
		o.metrics.attempts.WithLabelValues(provider, o.operation(s.Row.Tuple), string(dispatch.Lost)).Inc()
		if isSettled(status, s.Decision.Lookup) {
			o.metrics.settled.WithLabelValues(o.label(s.Row.Tuple.Provider()), string(status)).Inc()
		}
		o.log.Log(context.Background(), max(slog.LevelWarn, levelOf(status, s.Decision.Lookup)), "recovered a row of a dead worker", "provider", provider, "intent_id", s.Row.IntentID,
			"attempt", s.Row.Attempt, "idempotency_key", s.Row.idempotencyKey(), "status", string(status))
	}
}

func (o *observer) operation(tuple dispatch.Tuple) string {
	if _, configured := o.configured()[tuple.Provider()].Tools[tuple.Operation()]; configured {
		return tuple.Operation()
	}
	return unconfigured
}
