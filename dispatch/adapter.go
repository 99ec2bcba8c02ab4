// Package dispatch defines the parts of an effect, without any database: the key of an intent, the adapter that
// carries it to a provider, the outcome that the adapter saw, and the decision that follows from it.
//
//	Request ──Adapter.Dispatch──▶ Result ──Policy.Decide──▶ Decision
//
// An adapter only reports evidence, and a Policy only decides. The engine in package drainer connects the two.
package dispatch

import (
	"context"
	"encoding/json"
	"slices"
	"time"
)

// Request is one attempt at an intent, as an adapter gets it. An adapter must not change it.
type Request struct {
	Tuple          Tuple
	IdempotencyKey string            // the same on every attempt
	Payload        json.RawMessage   // the payload of the intent
	Headers        map[string]string // those of the agent; traceparent belongs to the attempt if it is traced
	Attempt        int               // 1 for the first
	ProviderRef    string            // for a lookup: the reference that an earlier attempt returned, if any
}

// Result is the adapter's report of one attempt. Everything in it is stored and shown to operators. So ErrorClass
// names the kind of a failure and never contains a payload, a URL or a credential. The engine removes configured
// secrets from a provider's text and cuts the text afterwards, so an adapter must not cut it.
type Result struct {
	Outcome         Outcome
	Final           bool          // a retry under this key would get the same answer, e.g. a replayed 500
	HTTPStatus      int           // 0 if the protocol has none
	ErrorClass      string        // short and stable, e.g. "timeout", "dial", "http_503"
	RetryAfter      time.Duration // how long the provider asks to wait; a lower bound of the delay
	Unsent          bool          // this side refused the request and wrote no byte of it
	Healthy         bool          // the failure concerns this intent alone: the provider could serve others
	OfOperation     bool          // the failure concerns this operation alone, e.g. its queue is missing
	Replayed        bool          // the provider said it had seen the key before
	ProviderRef     string        // the provider's own id of the effect
	Response        json.RawMessage
	ResponseHeaders map[string]string
	Problem         *Problem // the failure in words: the provider's, or this side's if it gave none
}

// Problem holds the fields of RFC 9457 Problem Details that are stored with an attempt.
type Problem struct {
	Type   string `json:"type,omitempty"`
	Title  string `json:"title,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Adapter speaks one provider's protocol. It makes exactly one attempt and reports the evidence. The engine retries,
// decides and records.
//
// Dispatch is called concurrently. It must return soon after ctx ends. It should not panic: the caller turns a panic
// into Ambiguous.
type Adapter interface {
	Dispatch(ctx context.Context, request Request) Result
}

// Greeter is an [Adapter] that exchanges messages with its counterpart before it can dispatch: it starts a child, or
// asks for a hello or a session. Greet does that and sends no intent, so that drainer verify can try it. Its result
// is completed, or not_sent or credentials_refused with an error class. If the counterpart does not offer an
// operation as configured, Problem.Title names the operation.
type Greeter interface {
	Greet(ctx context.Context) Result
}

// Previewer is an [Adapter] that returns a request as text, as it would be sent but without credentials. Preview
// sends nothing, and its error contains no payload.
type Previewer interface {
	Preview(ctx context.Context, request Request) (string, error)
}

// Outcome is how an attempt ended, by the evidence of the adapter or of the engine.
type Outcome string

const (
	// Completed is a success, or the replay of one.
	Completed Outcome = "completed"
	// NotSent means that no byte of the request was written.
	NotSent Outcome = "not_sent"
	// Throttled means that the provider refused for now, without an effect.
	Throttled Outcome = "throttled"
	// Rejected means that the provider refused for good.
	Rejected Outcome = "rejected"
	// CredentialsRefused means that the provider does not accept the credentials (any more). It looked at
	// nothing else, and refuses every request with them.
	CredentialsRefused Outcome = "credentials_refused"
	// Forbidden means that the provider accepts the credentials but does not permit this operation.
	Forbidden Outcome = "forbidden"
	// Absent is a lookup's proof that no earlier attempt had its effect. From any other attempt it is a
	// rejection.
	Absent Outcome = "absent"
	// Ambiguous means that the effect may or may not have happened.
	Ambiguous Outcome = "ambiguous"
	// InFlight means that the provider is still busy with an earlier attempt.
	InFlight Outcome = "in_flight"
	// Released means that the engine returned the row to the queue without sending it.
	Released Outcome = "released"
	// Lost means that the worker died and its evidence with it.
	Lost Outcome = "lost"
)

// Outcomes lists every outcome, in the order of the constants.
func Outcomes() []Outcome {
	return []Outcome{Completed, NotSent, Throttled, Rejected, CredentialsRefused, Forbidden, Absent, Ambiguous, InFlight, Released, Lost}
}

// RefusesUs reports whether the provider refused the configuration, and not the intent.
func (o Outcome) RefusesUs() bool { return o == CredentialsRefused || o == Forbidden }

// Unrenderable is the error class of an intent from which the tool's configuration could not render a request.
const Unrenderable = "unrenderable_request"

// LeavesDoubt reports whether the request may have had its effect. A provider that answers that it is busy with the
// key has seen the key.
func (o Outcome) LeavesDoubt() bool {
	return o == Ambiguous || o == Lost || o == InFlight
}

// Overloaded reports whether the provider could not be reached or had no room: over HTTP a 429, 503 or 529, or no
// connection. That concerns the whole provider, unless the adapter marks it as concerning this intent or
// operation alone. A refusal on this side never counts.
func (r Result) Overloaded() bool {
	switch {
	case r.Unsent, r.OfOperation:
		return false
	case r.Outcome == NotSent:
		return true
	case r.Healthy:
		return false
	}
	return r.Outcome == Throttled && slices.Contains(overloadStatuses, r.HTTPStatus)
}

// overloadStatuses contains 0 for adapters that do not speak HTTP.
var overloadStatuses = []int{0, 429, 503, 529}

// Failed reports whether the attempt counts against its operation: the provider was
// overloaded, refused the whole operation, gave no answer, or a 5xx.
func (r Result) Failed() bool {
	if r.Overloaded() || r.OfOperation {
		return true
	}
	return !r.Unsent && !r.Healthy && r.Outcome == Ambiguous && (r.HTTPStatus == 0 || r.HTTPStatus >= 500)
}

// Status is the state of an intent after an attempt.
type Status string

const (
	StatusPending   Status = "pending" // back in the queue
	StatusCompleted Status = "completed"
	StatusFailed    Status = "failed"
	StatusUnknown   Status = "unknown" // the effect may or may not have happened
)
