package dispatch

import "time"

// BreakerPolicy says when a provider is left alone, and for how long.
// The zero value never opens.
type BreakerPolicy struct {
	ConsecutiveFailures int           // overloads in a row that open the breaker
	CoolDown            time.Duration // at least this long; a longer Retry-After counts
}
