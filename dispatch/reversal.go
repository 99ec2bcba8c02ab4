package dispatch

import "time"

// Reversal says how the effect of a tool is undone. The zero value says that
// nothing undoes it.
type Reversal struct {
	Tool   string        // the tool that undoes it, by its full name
	Window time.Duration // how long after the effect that works; 0 where nobody said
}
