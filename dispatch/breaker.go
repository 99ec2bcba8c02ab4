package dispatch

import "time"

// BreakerPolicy says when a provider, or one of its operations, is left alone, and for how
// long. The zero value never opens.
type BreakerPolicy struct {
	FailureRate         float64       // the share of an operation's intents that must fail; 0 for never
	Window              time.Duration // of the newest time
	MinimumIntents      int           // in the window, below which no rate counts
	ConsecutiveFailures int           // overloads in a row that open the provider's breaker
	CoolDown            time.Duration // at least this long; a longer Retry-After counts
}
