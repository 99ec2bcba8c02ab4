package conformance

import "time"

const glance = 2 * time.Millisecond

// await looks until it holds or patience ends, and reports whether it held.
func await(patience time.Duration, holds func() bool) bool {
	if holds() {
		return true
	}
	end := time.NewTimer(patience)
	defer end.Stop()
	ticker := time.NewTicker(glance)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if holds() {
				return true
			}
		case <-end.C:
			return holds()
		}
	}
}
