package drainer

import "time"

// Fleet is what all workers share: how many they are, and each provider's gate.
type Fleet struct {
	Workers int // alive, this one included
	Rank    int // how many of them come before this one, in an order that all agree on
	Gates   []Gate
}

// Gate says whether anything may be sent to a provider.
type Gate struct {
	Provider string
	Paused   bool
	Breaker  BreakerState
	OpenFor  time.Duration // what is left of the cool-down or, half-open, of the prober's time
}

// BreakerState is where a provider's circuit breaker stands (Nygard, "Release
// It!", 2007).
type BreakerState string

const (
	BreakerClosed   BreakerState = "closed"
	BreakerOpen     BreakerState = "open"
	BreakerHalfOpen BreakerState = "half_open" // one worker tries with one row
)

// BreakerChange is what one attempt means for the shared breaker. The store
// heeds an opening while the breaker is closed, and any change by the prober.
type BreakerChange struct {
	Provider string
	Open     bool
	For      time.Duration // the cool-down, from the commit on
}

// share divides a limit among the workers so that their shares add up to it
// exactly: with more workers than limit some get none.
func (f Fleet) share(limit int) int {
	workers := max(1, f.Workers)
	share := limit / workers
	if f.Rank < limit%workers {
		share++
	}
	return share
}
