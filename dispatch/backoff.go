package dispatch

import (
	"math"
	"time"
)

// Backoff is Full Jitter (Brooker, "Exponential Backoff And Jitter", AWS
// Architecture Blog, 2015): a uniformly random delay below a ceiling that
// doubles with every try and never passes Cap.
type Backoff struct {
	Base time.Duration
	Cap  time.Duration
}

// Delay is how long to wait after the given try (1 for the first). fraction is
// a random number in [0, 1). retryAfter is a floor: the jitter comes on top, so
// that a fleet which got the same Retry-After does not return in the same
// second.
func (b Backoff) Delay(try int, retryAfter time.Duration, fraction float64) time.Duration {
	ceiling := b.ceiling(try)
	jitter := min(time.Duration(fraction*float64(ceiling)), ceiling)
	floor := max(retryAfter, 0)
	if floor > math.MaxInt64-jitter {
		return math.MaxInt64
	}
	return floor + jitter
}

func (b Backoff) ceiling(try int) time.Duration {
	if b.Base <= 0 || b.Cap <= 0 {
		return 0
	}
	ceiling := b.Base
	for range try - 1 {
		if ceiling > b.Cap/2 {
			return b.Cap
		}
		ceiling *= 2
	}
	return min(ceiling, b.Cap)
}
