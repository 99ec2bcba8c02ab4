package drainer

import "time"

// elapsed is how long ago t was, by whichever of the two clocks says more. The
// monotonic clock stops while a machine is suspended; the wall clock can be set
// back. Leases and keys expire on the safe side of both.
func elapsed(t time.Time) time.Duration { return between(t, time.Now()) }

func between(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}
