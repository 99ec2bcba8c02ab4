package dispatch

import (
	"math"
	"time"
)

// Policy is what a tool's configuration promises about repeating it.
type Policy struct {
	Class       Class
	Timeout     time.Duration // the longest one attempt may take
	Lookup      *Lookup       // nil: nobody can be asked
	KeyTTL      time.Duration // how long the provider remembers a key; only for KeyIdempotent
	MaxAttempts int
	Backoff     Backoff
}

// History is what the row's past says at the moment of deciding.
type History struct {
	Tries          int           // including the attempt that just ended
	SinceFirstSend time.Duration // since something may first have been sent
	MaybeApplied   bool          // an earlier attempt may have had its effect
}

// Decision is what follows from an attempt. Delay has a meaning only where
// Status is StatusPending.
type Decision struct {
	Status       Status
	Delay        time.Duration
	Tries        int
	MaybeApplied bool
}

// MayStillSend reports whether a row may be sent again: never once the
// provider may have forgotten the key of a request that may have been applied.
func (p Policy) MayStillSend(h History) bool {
	return !h.MaybeApplied || p.withinKeyTTL(h.SinceFirstSend)
}

// Decide turns the evidence of one attempt into where the intent stands. It
// is pure: fraction is the random number in [0, 1) that the jitter uses.
func (p Policy) Decide(h History, result Result, fraction float64) Decision {
	maybe := h.MaybeApplied || result.Outcome.leavesDoubt()
	settled := func(status Status) Decision {
		return Decision{Status: status, Tries: h.Tries, MaybeApplied: maybe}
	}
	switch result.Outcome {
	case Completed:
		return Decision{Status: StatusCompleted, Tries: h.Tries}
	case Released:
		return Decision{Status: StatusPending, Delay: max(result.RetryAfter, 0), Tries: h.Tries - 1, MaybeApplied: maybe}
	case Rejected:
		return settled(failureOf(maybe))
	case Ambiguous, Lost:
		if p.Class == NonIdempotent {
			return settled(StatusUnknown)
		}
	}
	delay := p.Backoff.Delay(h.Tries, result.RetryAfter, fraction)
	if h.Tries >= p.MaxAttempts || (maybe && !p.withinKeyTTL(later(h.SinceFirstSend, delay))) {
		return settled(failureOf(maybe))
	}
	return Decision{Status: StatusPending, Delay: delay, Tries: h.Tries, MaybeApplied: maybe}
}

// failureOf keeps ambiguity sticky: a refusal after a request that may have
// been applied proves nothing about that request.
func failureOf(maybeApplied bool) Status {
	if maybeApplied {
		return StatusUnknown
	}
	return StatusFailed
}

// later adds without overflow: a delay for ever must not look like one that
// is long past.
func later(since, delay time.Duration) time.Duration {
	if delay > math.MaxInt64-max(since, 0) {
		return math.MaxInt64
	}
	return since + delay
}

// withinKeyTTL keeps half of the key's life as a margin: the request that
// leaves now may arrive late.
func (p Policy) withinKeyTTL(sinceFirstSend time.Duration) bool {
	return p.Class != KeyIdempotent || sinceFirstSend < p.KeyTTL/2
}
