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
	if stop.Err() != nil {
		return nothingAllowed
	}
	switch own := l.own(); own.breaker.passage() {
	case passRows:
		return l.within(own)
	case passProbe:
		if l.probes == 0 {
			return allowance{rows: min(1, l.room()), probeFor: l.provider.Timeout + turnTimeout, wait: pollInterval}
		}
		return l.allowedToFallback()
	case passNothing:
		return l.allowedToFallback()
	}
	return nothingAllowed
}

func (l *lane) allowedToFallback() allowance {
	fallback, configured := l.upstreams[l.provider.Fallback]
	if !configured || fallback.breaker.passage() != passRows {
		return nothingAllowed
	}
	return l.within(fallback)
}

func (l *lane) within(upstream *upstream) allowance {
	budget, wait := upstream.budget()
	if wait == 0 {
		wait = pollInterval
	}
	return allowance{rows: min(l.room(), budget), wait: min(wait, pollInterval)}
}

// barred reports that rows may be due and none of them may be sent for now.
func (l *lane) barred() bool {
	switch l.own().breaker.passage() {
	case passPaused:
		return true
	case passNothing:
		return l.allowedToFallback() == nothingAllowed
	}
	return false
}

func (l *lane) room() int {
	return max(0, l.own().slots.size()+l.prefetch-l.outstanding)
}

func (l *lane) own() *upstream { return l.upstreams[l.provider.Name] }
