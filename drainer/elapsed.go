package drainer

import "time"

func elapsed(since time.Time) time.Duration { return between(since, time.Now()) }

// between is how long it was from one time to another, by whichever of the two
// clocks says more. The monotonic clock stops while a machine is suspended; the
// wall clock can be set back. Leases and keys expire on the safe side of both.
func between(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}
