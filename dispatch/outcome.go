package dispatch

import "slices"

// Outcome says how an attempt ended, by the evidence that the adapter or the
// engine has of it.
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
	// CredentialsRefused means that the provider does not know this side, or not any more: it
	// looked at nothing else, and refuses all that is sent with these credentials.
	CredentialsRefused Outcome = "credentials_refused"
	// Forbidden means that the provider knows this side and does not allow it this operation.
	Forbidden Outcome = "forbidden"
	// Absent is a lookup's proof that no earlier attempt had its effect. On an
	// attempt that acts it is a rejection.
	Absent Outcome = "absent"
	// Ambiguous means that the effect may or may not have happened.
	Ambiguous Outcome = "ambiguous"
	// InFlight means that the provider is still busy with an earlier attempt.
	InFlight Outcome = "in_flight"
	// Released means that the engine gave the row back without sending it.
	Released Outcome = "released"
	// Lost means that the worker died and its evidence with it.
	Lost Outcome = "lost"
)

// Outcomes lists every outcome, in the order of the constants.
func Outcomes() []Outcome {
	return []Outcome{Completed, NotSent, Throttled, Rejected, CredentialsRefused, Forbidden, Absent, Ambiguous, InFlight, Released, Lost}
}

// RefusesUs reports that this side's configuration was refused, and not the intent.
func (o Outcome) RefusesUs() bool { return o == CredentialsRefused || o == Forbidden }

// Unrenderable is the error class of an intent of which the tool's configuration made no request.
const Unrenderable = "unrenderable_request"

// LeavesDoubt reports whether the request may have had its effect. A provider
// that is busy with the key has, by that, seen the key.
func (o Outcome) LeavesDoubt() bool {
	return o == Ambiguous || o == Lost || o == InFlight
}

// Overloaded reports whether the provider was out of reach or out of room, which
// speaks for the whole of it: over HTTP a 429, 503 or 529, or no connection. An adapter may
// know that a refusal does not. What this side refused never came near it.
func (r Result) Overloaded() bool {
	switch {
	case r.Unsent:
		return false
	case r.Outcome == NotSent:
		return true
	case r.Healthy:
		return false
	}
	return r.Outcome == Throttled && slices.Contains(overloadStatuses, r.HTTPStatus)
}

// overloadStatuses has 0 for adapters that do not speak HTTP.
var overloadStatuses = []int{0, 429, 503, 529}

// Failed reports whether the attempt counts against its operation: the provider was
// overloaded, gave no answer, or a 5xx.
func (r Result) Failed() bool {
	if r.Overloaded() {
		return true
	}
	return !r.Unsent && !r.Healthy && r.Outcome == Ambiguous && (r.HTTPStatus == 0 || r.HTTPStatus >= 500)
}

// Status says where an attempt leaves its intent.
type Status string

const (
	StatusPending   Status = "pending" // back in the queue
	StatusCompleted Status = "completed"
	StatusFailed    Status = "failed"
	StatusUnknown   Status = "unknown" // it may or may not have been applied
)
