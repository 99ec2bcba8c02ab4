package dispatch

import "time"

// Lookup says how to learn whether an attempt in doubt had its effect: by a
// read-only tool of the same provider, called with the intent's own payload
// and key. It reports Completed for an effect it found and Absent for one that
// never was; anything else tells nothing.
type Lookup struct {
	Operation string
	Margin    time.Duration // added to the deadline of the last send, after which absence is believed
}
