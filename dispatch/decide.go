package dispatch

import (
	"encoding/json"
	"math"
	"time"
)

// Policy holds the promises of a tool's configuration about repeating it.
type Policy struct {
	Class             Class
	Timeout           time.Duration // the longest one attempt may take
	Lookup            *Lookup       // nil: there is no lookup
	Reversal          Reversal
	KeyTTL            time.Duration // how long the provider remembers a key; only for KeyIdempotent
	BeginsSaga        bool          // its failure compensates what its agent run has completed
	RefusalBeginsSaga bool          // and so does a refusal on this side, of which no provider knows
	FirstReplayOpens  bool          // an answer from memory to the first attempt is an incident
	MaxAttempts       int
	Backoff           Backoff
	MaxWait           time.Duration // the longest wait that a provider may ask for; 0 bounds nothing
	Payload           PayloadSchema // nil demands nothing
}

// PayloadSchema validates a payload before anything is sent.
type PayloadSchema interface {
	// Violation is nil for a good payload. It repeats nothing of a bad one.
	Violation(payload json.RawMessage) *Problem
	// Document is the JSON Schema, for those who make payloads.
	Document() json.RawMessage
}

// History is the row's past at the moment of deciding.
type History struct {
	Tries          int           // including the attempt that just ended
	SinceFirstSend time.Duration // since something may first have been sent
	SinceStart     time.Duration // since the attempt that just ended began
	MaybeApplied   bool          // an earlier attempt may have had its effect
	Accepted       bool          // and an operator accepts a second one; nothing was sent since
	Lookup         bool          // the attempt asked, it did not act
	OlderDoubt     bool          // what may have been applied was sent under an older key, too
}

// Decision is the consequence of an attempt. Delay has a meaning only where the
// row goes [Decision.Back].
type Decision struct {
	Status       Status
	Delay        time.Duration
	Tries        int
	MaybeApplied bool
	Lookup       bool // the next attempt asks, it does not act
}

// Back reports whether the row is requeued: to act again, or to look up its
// effect while its status is unknown.
func (d Decision) Back() bool { return d.Status == StatusPending || d.Lookup }

// MayStillSend reports whether a row may be sent again: of a request that may
// have been applied never once the provider may have forgotten its key, and
// never where repeating repeats the effect, unless an operator accepts just
// that. A row may have come into doubt while its tool was thought to be safer.
func (p Policy) MayStillSend(h History) bool {
	return !h.MaybeApplied || h.Accepted || p.Class != NonIdempotent && p.withinKeyTTL(h.SinceFirstSend)
}

// Decide turns the evidence of one attempt into where the intent stands. It
// is pure: fraction is the random number in [0, 1) that the jitter uses.
func (p Policy) Decide(h History, result Result, fraction float64) Decision {
	switch {
	case result.Outcome == Released, result.Outcome.RefusesUs():
		return h.asBefore(max(p.Believed(result.RetryAfter), 0))
	case h.Lookup:
		return p.decideLookup(h, result, fraction)
	}
	return p.decideAttempt(h, result, fraction)
}

// asBefore puts a row back as if it had never been claimed.
func (h History) asBefore(delay time.Duration) Decision {
	status := StatusPending
	if h.Lookup {
		status = StatusUnknown
	}
	return Decision{Status: status, Delay: delay, Tries: h.Tries - 1, MaybeApplied: h.MaybeApplied, Lookup: h.Lookup}
}

func (p Policy) decideAttempt(h History, result Result, fraction float64) Decision {
	h.MaybeApplied = h.MaybeApplied || result.Outcome.LeavesDoubt()
	h.Accepted = h.Accepted && result.Outcome == NotSent // one send was accepted, and this was it
	switch result.Outcome {
	case Completed:
		return Decision{Status: StatusCompleted, Tries: h.Tries}
	case Rejected, Absent:
		return p.giveUp(h)
	case Lost:
		h.SinceStart = 0 // a worker that was only frozen may have sent it just now
	}
	delay := p.Backoff.Delay(h.Tries, p.Believed(result.RetryAfter), fraction)
	if result.Final || h.Tries >= p.MaxAttempts || !p.mayRepeat(h, delay) {
		return p.giveUp(h)
	}
	return Decision{Status: StatusPending, Delay: delay, Tries: h.Tries, MaybeApplied: h.MaybeApplied}
}

// Believed bounds the wait that a provider asked for. A slip there, a year for
// a minute, must not park an intent or an undo.
func (p Policy) Believed(retryAfter time.Duration) time.Duration {
	if p.MaxWait > 0 {
		return min(retryAfter, p.MaxWait)
	}
	return retryAfter
}

// mayRepeat reports whether another request after the delay can do no harm.
func (p Policy) mayRepeat(h History, delay time.Duration) bool {
	h.SinceFirstSend = later(h.SinceFirstSend, delay)
	return p.MayStillSend(h)
}

// Halt ends the attempts of a step whose run is rolled back.
func (p Policy) Halt(h History) Decision { return p.giveUp(h) }

// giveUp ends the attempts. It keeps ambiguity sticky: a refusal after a
// request that may have been applied proves nothing about that request, so
// the provider is asked if it can be, and a human if not.
func (p Policy) giveUp(h History) Decision {
	switch {
	case !h.MaybeApplied:
		return Decision{Status: StatusFailed, Tries: h.Tries}
	case p.Lookup == nil:
		return Decision{Status: StatusUnknown, Tries: h.Tries, MaybeApplied: true}
	}
	return Decision{Status: StatusUnknown, Delay: p.UntilDrained(h), Tries: h.Tries, MaybeApplied: true, Lookup: true}
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
	window, ends := p.RetryWindow()
	return !ends || sinceFirstSend < window
}

// RetryWindow is how long after its first send an intent that may have been
// applied is still tried. It ends for key-idempotent tools alone.
func (p Policy) RetryWindow() (window time.Duration, ends bool) {
	return p.KeyTTL / 2, p.Class == KeyIdempotent
}
