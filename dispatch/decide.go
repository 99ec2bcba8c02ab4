package dispatch

import (
	"encoding/json"
	"math"
	"time"
)

// Class is the effect of repeating a call. It decides whether an ambiguous failure may be retried.
type Class string

const (
	ReadOnly            Class = "read_only"
	NaturallyIdempotent Class = "naturally_idempotent"
	KeyIdempotent       Class = "key_idempotent"
	NonIdempotent       Class = "non_idempotent"
)

// Classes lists every class, safest first.
func Classes() []Class {
	return []Class{ReadOnly, NaturallyIdempotent, KeyIdempotent, NonIdempotent}
}

// Policy holds a tool's configuration about retries and undos.
type Policy struct {
	Class             Class
	Timeout           time.Duration // the longest one attempt may take
	Lookup            *Lookup       // nil if there is no lookup
	Reversal          Reversal
	KeyTTL            time.Duration // how long the provider remembers a key; only for KeyIdempotent
	BeginsSaga        bool          // its failure compensates the completed steps of its agent run
	RefusalBeginsSaga bool          // a refusal on this side, before anything is sent, does so as well
	FirstReplayOpens  bool          // a replayed answer to the first attempt opens an incident
	MaxAttempts       int
	Backoff           Backoff
	MaxWait           time.Duration // the longest Retry-After that is obeyed; 0 for no bound
	HasFallback       bool          // its provider has a fallback, which may have acted in a commit that was lost
	Payload           PayloadSchema // nil accepts any payload
}

// PayloadSchema validates a payload before anything is sent.
type PayloadSchema interface {
	// Violation returns nil for a valid payload. It repeats nothing of an invalid one.
	Violation(payload json.RawMessage) *Problem
	// Document returns the JSON Schema, for clients that make payloads.
	Document() json.RawMessage
}

// History is a row's past at the time of a decision.
type History struct {
	Tries          int           // including the attempt that just ended
	SinceFirstSend time.Duration // since a request may first have been sent
	SinceStart     time.Duration // since the attempt that just ended began
	MaybeApplied   bool          // an earlier attempt may have had its effect
	Accepted       bool          // an operator accepts a second effect, and nothing was sent since
	Lookup         bool          // the attempt was a lookup
	OlderDoubt     bool          // a request that may have been applied was sent under an older key, too
}

// Decision is the consequence of an attempt. Delay has a meaning only if [Decision.Back] is true.
type Decision struct {
	Status       Status
	Delay        time.Duration
	Tries        int
	MaybeApplied bool
	Lookup       bool // the next attempt is a lookup
}

// Back reports whether the row returns to the queue: to act again, or to look up its effect while its status is
// unknown.
func (d Decision) Back() bool { return d.Status == StatusPending || d.Lookup }

// MayStillSend reports whether a row may be sent again. A request that may have been applied is not repeated once
// the provider may have forgotten its key, nor if its tool is non-idempotent, unless an operator accepts a
// second effect. The tool may have had a safer class when the row came into doubt.
func (p Policy) MayStillSend(h History) bool {
	return !h.MaybeApplied || h.Accepted || p.Class != NonIdempotent && p.withinKeyTTL(h.SinceFirstSend)
}

// Decide turns the evidence of one attempt into the intent's next status. It is pure: fraction is the random
// number in [0, 1) for the jitter.
func (p Policy) Decide(h History, result Result, fraction float64) Decision {
	switch {
	case result.Outcome == Released, result.Outcome.RefusesUs():
		return h.asBefore(max(p.Believed(result.RetryAfter), 0))
	case h.Lookup:
		return p.decideLookup(h, result, fraction)
	}
	return p.decideAttempt(h, result, fraction)
}

// asBefore puts a row back into the queue as if it had never been claimed.
func (h History) asBefore(delay time.Duration) Decision {
	status := StatusPending
	if h.Lookup {
		status = StatusUnknown
	}
	return Decision{Status: status, Delay: delay, Tries: h.Tries - 1, MaybeApplied: h.MaybeApplied, Lookup: h.Lookup}
}

func (p Policy) decideAttempt(h History, result Result, fraction float64) Decision {
	h.MaybeApplied = h.MaybeApplied || result.Outcome.LeavesDoubt()
	h.Accepted = h.Accepted && result.Outcome == NotSent // the operator accepted one further request, and this attempt sent it
	switch result.Outcome {
	case Completed:
		return Decision{Status: StatusCompleted, Tries: h.Tries}
	case Rejected, Absent:
		return p.giveUp(h)
	case Lost:
		h.SinceStart = 0 // the worker may only have been suspended, and may have sent the request just now
	}
	delay := p.Backoff.Delay(h.Tries, p.Believed(result.RetryAfter), fraction)
	if result.Final || h.Tries >= p.MaxAttempts || !p.mayRepeat(h, delay) {
		return p.giveUp(h)
	}
	return Decision{Status: StatusPending, Delay: delay, Tries: h.Tries, MaybeApplied: h.MaybeApplied}
}

// Believed bounds the wait that a provider asks for: a mistake there, such as a year in place of a minute, must
// not hold an intent or an undo for so long.
func (p Policy) Believed(retryAfter time.Duration) time.Duration {
	if p.MaxWait > 0 {
		return min(retryAfter, p.MaxWait)
	}
	return retryAfter
}

// mayRepeat reports whether another request after the delay is safe.
func (p Policy) mayRepeat(h History, delay time.Duration) bool {
	h.SinceFirstSend = later(h.SinceFirstSend, delay)
	return p.MayStillSend(h)
}

// Halt decides for a step whose run is being rolled back. It ends the attempts.
func (p Policy) Halt(h History) Decision { return p.giveUp(h) }

// giveUp ends the attempts. Doubt stays: a refusal proves nothing about an earlier request that may have been
// applied. So a lookup follows if the tool has one. Otherwise a human must decide.
func (p Policy) giveUp(h History) Decision {
	switch {
	case !h.MaybeApplied:
		return Decision{Status: StatusFailed, Tries: h.Tries}
	case p.Lookup == nil:
		return Decision{Status: StatusUnknown, Tries: h.Tries, MaybeApplied: true}
	}
	return Decision{Status: StatusUnknown, Delay: p.UntilDrained(h), Tries: h.Tries, MaybeApplied: true, Lookup: true}
}

// later adds two durations without overflow, so that a very long delay does not become a negative one.
func later(since, delay time.Duration) time.Duration {
	if delay > math.MaxInt64-max(since, 0) {
		return math.MaxInt64
	}
	return since + delay
}

// withinKeyTTL keeps half of the key's lifetime as a margin, since a request that leaves now may arrive late.
func (p Policy) withinKeyTTL(sinceFirstSend time.Duration) bool {
	window, ends := p.RetryWindow()
	return !ends || sinceFirstSend < window
}

// RetryWindow is how long after its first send an intent that may have been applied is still tried. It is bounded
// for key-idempotent tools only.
func (p Policy) RetryWindow() (window time.Duration, ends bool) {
	return p.KeyTTL / 2, p.Class == KeyIdempotent
}

// Lookup says how to find out whether an attempt in doubt had its effect: by a read-only tool of the same provider,
// called with the intent's own payload and key. Its outcome Completed proves the effect, and Absent proves
// that there is none. Any other outcome proves nothing.
type Lookup struct {
	Operation string
	Margin    time.Duration // added to the deadline of the last send, after which absence is believed
}

// UntilDrained is for how long the last request may still be on its way: until its deadline and the lookup's margin
// after that. An earlier lookup could miss a late effect. The policy must have a lookup.
func (p Policy) UntilDrained(h History) time.Duration {
	return later(max(0, p.Timeout-max(0, h.SinceStart)), p.Lookup.Margin)
}

// lookupTries is how many lookups beyond MaxAttempts may fail before the intent is left unknown.
const lookupTries = 8

func (p Policy) decideLookup(h History, result Result, fraction float64) Decision {
	delay := p.Backoff.Delay(h.Tries, p.Believed(result.RetryAfter), fraction)
	if result.Outcome == Lost && p.Lookup != nil { // perhaps the worker died before it could wait for the last send
		delay = max(delay, later(p.Timeout, p.Lookup.Margin))
	}
	switch {
	case result.Outcome == Completed:
		return Decision{Status: StatusCompleted, Tries: h.Tries}
	case result.Outcome == Absent && h.OlderDoubt: // the lookup used only the newest key
		return Decision{Status: StatusUnknown, Tries: h.Tries, MaybeApplied: true}
	case result.Outcome == Absent && (p.Class == NonIdempotent || h.Tries >= p.MaxAttempts):
		return Decision{Status: StatusFailed, Tries: h.Tries}
	case result.Outcome == Absent:
		return Decision{Status: StatusPending, Delay: delay, Tries: h.Tries}
	}
	again := p.Lookup != nil && h.Tries < p.MaxAttempts+lookupTries
	return Decision{Status: StatusUnknown, Delay: delay, Tries: h.Tries, MaybeApplied: true, Lookup: again}
}

// Reversal says how a tool's effect is undone. The zero value declares nothing.
type Reversal struct {
	Tool    string        // the tool that undoes it, by its full name
	Payload string        // a jq expression that makes the undo's payload; empty sends the forward payload
	Window  time.Duration // for how long after the effect the undo works; 0 if not declared
	None    bool          // the effect needs no undo
}

// ReversalInput lists the fields of the effect that the expression of a [Reversal] can read.
var ReversalInput = []string{
	"payload", "response", "provider_ref", "key", "agent_run_id", "step_id", "tool_name", "business_scope",
}

// Backoff is Full Jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015): a random delay,
// uniform between 0 and a ceiling. The ceiling doubles with every try up to Cap.
type Backoff struct {
	Base time.Duration
	Cap  time.Duration
}

// Delay returns how long to wait after the given try (1 for the first). fraction is a random number in [0, 1).
// retryAfter is a lower bound, and the jitter is added to it, so that workers which got the same Retry-After do not
// all return in the same second.
func (b Backoff) Delay(try int, retryAfter time.Duration, fraction float64) time.Duration {
	ceiling := b.ceiling(try)
	jitter := min(time.Duration(fraction*float64(ceiling)), ceiling)
	floor := max(retryAfter, 0)
	if floor > math.MaxInt64-jitter {
		return math.MaxInt64
	}
	return floor + jitter
}

func (b Backoff) ceiling(try int) time.Duration {
	if b.Base <= 0 || b.Cap <= 0 {
		return 0
	}
	ceiling := b.Base
	for range try - 1 {
		if ceiling > b.Cap/2 {
			return b.Cap
		}
		ceiling *= 2
	}
	return min(ceiling, b.Cap)
}
