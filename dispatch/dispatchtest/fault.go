package dispatchtest

// Fault is a way in which a provider fails one request.
type Fault string

const (
	None Fault = "none"
	Slow Fault = "slow" // answers late

	// Refused for now, without an effect: 429, 503 and 529 alone, with
	// Retry-After in seconds, and with Retry-After as a date.
	Throttle         Fault = "throttle"
	ThrottleFor      Fault = "throttle_for"
	ThrottleUntil    Fault = "throttle_until"
	Unavailable      Fault = "unavailable"
	UnavailableFor   Fault = "unavailable_for"
	UnavailableUntil Fault = "unavailable_until"
	Overloaded       Fault = "overloaded"
	OverloadedFor    Fault = "overloaded_for"
	OverloadedUntil  Fault = "overloaded_until"

	// Refused for the sake of the key, without an effect.
	Outstanding Fault = "busy"  // 409 with Retry-After: an earlier request is outstanding
	Taken       Fault = "taken" // 409, from now on: somebody used the key for another body

	// Refused for what it asks, without an effect: 422. See SimulatedProvider.Declines.
	Declined Fault = "declined"

	// The answer is lost or an error, before the effect or after it.
	ErrorBefore    Fault = "error_before"    // 500
	ErrorAfter     Fault = "error_after"     // 500, though the effect happened
	DropBefore     Fault = "drop_before"     // closes the connection
	DropAfter      Fault = "drop_after"      // closes the connection after the effect
	MalformedReply Fault = "malformed_reply" // the effect happened, the JSON is cut short

	// A 500 that the key brings again and again, before the effect or after
	// it. ErrorForGood says so itself: Stripe-Should-Retry: false.
	SavedErrorBefore Fault = "saved_error_before"
	SavedErrorAfter  Fault = "saved_error_after"
	ErrorForGood     Fault = "error_for_good" // after the effect

	// These wait for Release.
	HangBefore Fault = "hang_before" // has the effect late; until then the key is busy
	HangAfter  Fault = "hang_after"  // has the effect, and answers late
)

// Faults lists every way to fail, in the order of the constants. It leaves
// out None and the two that wait for a test.
func Faults() []Fault {
	return []Fault{
		Slow,
		Throttle, ThrottleFor, ThrottleUntil,
		Unavailable, UnavailableFor, UnavailableUntil,
		Overloaded, OverloadedFor, OverloadedUntil,
		Outstanding, Taken, Declined,
		ErrorBefore, ErrorAfter, DropBefore, DropAfter, MalformedReply,
		SavedErrorBefore, SavedErrorAfter, ErrorForGood,
	}
}
