package dispatch

import "time"

// Lookup says how to learn whether an attempt in doubt had its effect: by a
// read-only tool of the same provider, called with the intent's own payload and
// key. It reports Completed for an effect it found and Absent for one that
// never was; anything else proves nothing.
type Lookup struct {
	Operation string
	Margin    time.Duration // added to the deadline of the last send, after which absence is believed
}

// UntilDrained is how long a request may still be on its way: to the deadline
// of the last attempt, and the margin after it. A lookup that comes earlier
// could take a late effect for none. It must be a policy with a lookup.
func (p Policy) UntilDrained(h History) time.Duration {
	return later(max(0, p.Timeout-max(0, h.SinceStart)), p.Lookup.Margin)
}

// lookupTries is how often a provider is asked, beyond MaxAttempts, before the
// lookup counts as failed.
const lookupTries = 8

func (p Policy) decideLookup(h History, result Result, fraction float64) Decision {
	delay := p.Backoff.Delay(h.Tries, p.Believed(result.RetryAfter), fraction)
	if result.Outcome == Lost && p.Lookup != nil { // perhaps before it could wait for the last send
		delay = max(delay, later(p.Timeout, p.Lookup.Margin))
	}
	switch {
	case result.Outcome == Completed:
		return Decision{Status: StatusCompleted, Tries: h.Tries}
	case result.Outcome == Absent && h.OlderDoubt: // it was asked about the newest key, and by its payload alone it may not know
		return Decision{Status: StatusUnknown, Tries: h.Tries, MaybeApplied: true}
	case result.Outcome == Absent && (p.Class == NonIdempotent || h.Tries >= p.MaxAttempts):
		return Decision{Status: StatusFailed, Tries: h.Tries}
	case result.Outcome == Absent:
		return Decision{Status: StatusPending, Delay: delay, Tries: h.Tries}
	}
	again := p.Lookup != nil && h.Tries < p.MaxAttempts+lookupTries
	return Decision{Status: StatusUnknown, Delay: delay, Tries: h.Tries, MaybeApplied: true, Lookup: again}
}
