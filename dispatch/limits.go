package dispatch

// RateLimit bounds the dispatches to a provider, over all workers together.
// The zero value is no limit.
type RateLimit struct {
	PerSecond float64
	Burst     int
}
