package drainer

import (
	"context"
	"time"
)

// allowance is what a lane may claim with its next turn, and how long to wait
// where that is nothing.
type allowance struct {
	rows     int
	probeFor time.Duration // over 0: one row, to try the provider
	wait     time.Duration
}

var nothingAllowed = allowance{wait: pollInterval}

// allowance never claims a row that could not be sent soon: a claimed row
// counts as sent once its worker dies.
func (l *lane) allowance(stop context.Context) allowance {
	if stop.Err() != nil || l.barred() {
		return nothingAllowed
	}
	if l.server.breaker.passage() == passRows {
		budget, wait := l.server.budget()
		if wait == 0 {
			wait = pollInterval
		}
		return allowance{rows: min(l.room(), max(0, budget-l.pending.rows())), wait: min(wait, pollInterval)}
	}
	if l.probes > 0 {
		return nothingAllowed
	}
	return allowance{rows: min(1, l.room()), probeFor: l.server.provider.Timeout + turnTimeout, wait: pollInterval}
}

// barred reports that rows may be due and none of them may be sent for now.
func (l *lane) barred() bool {
	passage := l.server.breaker.passage()
	return passage == passPaused || passage == passNothing || l.isPaused() || l.server.slots.size() == 0
}

// isPaused asks the rows' own provider: a pause holds for its fallback as well.
func (l *lane) isPaused() bool {
	return l.upstreams[l.provider].breaker.passage() == passPaused
}

func (l *lane) room() int {
	slots := l.server.slots.size()
	if slots == 0 {
		return 0
	}
	return max(0, slots+l.prefetch-l.outstanding-l.pending.rows())
}

// mayPrefetch is no for rows that could soon be barred.
func (l *lane) mayPrefetch() bool {
	return l.prefetches && l.server.breaker.passage() == passRows
}

func (l *lane) isDetour() bool { return route{l.provider, l.server.provider.Name}.isDetour() }

// worthPrefetching is how many rows to hold for dispatchers that ended so many in
// one turn, if a payload has so many octets.
func worthPrefetching(ended, heft int) int {
	return min(turnsOfWork*ended, maxPrefetch, maxPrefetchOctets/max(1, heft))
}
