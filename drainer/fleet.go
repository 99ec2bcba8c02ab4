package drainer

import "time"

// Gate is what all workers share of a provider: whether anything may be sent
// to it, and how many of them send.
type Gate struct {
	Provider string
	Paused   bool
	Breaker  BreakerState
	OpenFor  time.Duration // what is left of the cool-down or, half-open, of the prober's time
	Workers  int           // that serve the provider, this one included
	Rank     int           // how many of them come before this one, in an order that all agree on
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
// heeds an opening while nobody probes, and a probe's verdict while its worker
// is the prober.
type BreakerChange struct {
	Provider string
	Open     bool
	For      time.Duration // the cool-down, from the commit on
	Probe    bool
}

// share divides a limit among the workers so that their shares add up to it
// exactly: with more workers than limit some get none.
func (g Gate) share(limit int) int {
	workers := max(1, g.Workers)
	share := limit / workers
	if g.Rank < limit%workers {
		share++
	}
	return share
}
