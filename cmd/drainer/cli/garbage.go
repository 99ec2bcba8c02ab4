package cli

import (
	"os"
	"runtime/debug"
)

// garbagePercent is twice Go's own: what lives is little beside what every
// attempt leaves, so a few megabytes save a sixth of the processor's time.
const garbagePercent = 200

// collectLess leaves the last word to GOGC.
func collectLess() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
}
