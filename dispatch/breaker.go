package dispatch

import "time"

// BreakerPolicy says when a provider is left alone, and for how long.
// The zero value never opens.
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

// Overloaded reports whether the provider was out of reach or out of room:
// what opens a breaker. A 429 is the caller's own limit and says nothing of
// the provider's health; an answer of any other kind proves that it lives.
func (r Result) Overloaded() bool {
	switch r.Outcome {
	case NotSent:
		return true
	case Throttled:
		return r.HTTPStatus == 0 || r.HTTPStatus == 503 || r.HTTPStatus == 529
	case Ambiguous:
		return r.HTTPStatus == 0
	}
	return false
}
