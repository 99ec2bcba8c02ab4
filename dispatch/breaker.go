package dispatch

import "time"

// BreakerPolicy says when a provider is left alone, and for how long.
type BreakerPolicy struct {
	ConsecutiveFailures int           // overloads in a row that open the breaker
	CoolDown            time.Duration // at least this long; a longer Retry-After counts
}

// RateLimit bounds the dispatches to a provider, over all workers together.
// The zero value is no limit.
type RateLimit struct {
	PerSecond float64
	Burst     int
}
