package replay

import (
	"bytes"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

// evidence is all that was seen; again is nil where the first call failed, and
// other where nothing was asked.
type evidence struct {
	first        Call
	again, other *Call
	atOnce       []Call
}

// alone are the calls under the first key.
func (e evidence) alone() []Call {
	calls := []Call{e.first}
	for _, call := range []*Call{e.again, e.other} {
		if call != nil {
			calls = append(calls, *call)
		}
	}
	return calls
}

// judge asks what the class promises, and nothing more.
func (e evidence) judge(class dispatch.Class) []Check {
	checks := []Check{e.firstCall()}
	if e.again == nil {
		return checks
	}
	switch class {
	case dispatch.KeyIdempotent:
		return append(checks, e.sameCall(), e.marker(), e.body(), e.otherPayload(), e.keyedAtOnce(), e.effects())
	case dispatch.NaturallyIdempotent:
		return append(checks, e.repetition(), e.harmlessAtOnce(), e.effects())
	default:
		return append(checks, e.repetition())
	}
}

// unavailable are first answers that tell of an outage, not of a promise.
var unavailable = []dispatch.Outcome{dispatch.Throttled, dispatch.NotSent, dispatch.Ambiguous, dispatch.InFlight}

func (e evidence) firstCall() Check {
	check := Check{Name: "first call", Verdict: OK, Seen: e.first.String(), Expected: "completed"}
	switch {
	case slices.Contains(unavailable, e.first.Outcome):
		check.Verdict, check.Advice = NoVerdict, "the provider was not available; try again"
	case e.first.Outcome != dispatch.Completed:
		check.Verdict, check.Advice = Failed, "give a payload that the provider accepts; nothing else was called"
	case e.first.Replayed:
		check.Verdict, check.Advice = Failed, "a fresh key was answered as a replay: the provider takes different keys for one"
	}
	return check
}

// sameCall asks whether the key was recognised, which takes more than a
// success: the provider must say so, or name the same effect.
func (e evidence) sameCall() Check {
	check := Check{Name: "same call again", Verdict: Failed, Seen: e.again.String(), Expected: "completed by the same effect"}
	switch {
	case e.again.Outcome != dispatch.Completed:
		check.Advice = "the answer to a repeated call is not understood as a success"
	case differ(e.first, *e.again):
		check.Seen += ", another provider reference"
		check.Advice = "the provider acted twice under one key; the tool is not key_idempotent"
	case !recognised(e.first, *e.again):
		check.Advice = "neither a replay marker nor a provider reference shows that the key was recognised; set http.response.ref"
	default:
		check.Verdict = OK
	}
	return check
}

func (e evidence) marker() Check {
	check := Check{Name: "replay marker", Verdict: OK, Seen: "seen", Expected: "a header that marks the replay"}
	if !e.again.Replayed {
		check.Verdict, check.Seen, check.Advice = Warning, "not seen", "drainer cannot count replays of this provider"
	}
	return check
}

func (e evidence) body() Check {
	check := Check{Name: "same body", Verdict: OK, Seen: "equal, octet for octet", Expected: "that of the first call"}
	switch {
	case !bytes.Equal(e.first.body, e.again.body):
		check.Verdict, check.Seen, check.Advice = Failed, "different", "the provider does not answer with what it saved"
	case len(e.first.body) == 0:
		check.Seen = "both empty"
	}
	return check
}

func (e evidence) otherPayload() Check {
	check := Check{Name: "another payload", Verdict: Failed, Expected: "rejected, without an effect"}
	if e.other == nil {
		check.Verdict, check.Seen, check.Advice = Skipped, "nothing", "give --other-payload"
		return check
	}
	check.Seen = e.other.String()
	switch {
	case e.other.Outcome == dispatch.Rejected:
		check.Verdict = OK
	case e.other.Outcome == dispatch.InFlight:
		check.Advice = "drainer would try again and again; tell the two refusals apart"
	case e.other.Outcome != dispatch.Completed:
		check.Advice = "the answer tells nothing; run it again"
	case !recognised(e.first, *e.other):
		check.Advice = "as far as anybody can tell the provider acted on the other payload"
	default:
		check.Verdict, check.Advice = Warning, "the provider answers for the first payload without a word; it will not notice a mistaken key"
	}
	return check
}

// repetition is all that a class without a key promises.
func (e evidence) repetition() Check {
	check := Check{Name: "same call again", Verdict: OK, Seen: e.again.String(), Expected: "completed"}
	switch {
	case e.again.Outcome != dispatch.Completed:
		check.Verdict, check.Advice = Failed, "repeating the call is no success, as the class says it is"
	case differ(e.first, *e.again):
		check.Verdict, check.Seen = Failed, check.Seen+", another provider reference"
		check.Advice = "the provider made something new; repeating the call is not harmless"
	}
	return check
}

// recognised reports whether an answer shows that it belongs to the effect of
// an earlier one.
func recognised(first, again Call) bool {
	if first.ProviderRef != "" && again.ProviderRef != "" {
		return first.ProviderRef == again.ProviderRef
	}
	return again.Replayed
}

// differ reports whether two answers name two effects.
func differ(a, b Call) bool {
	return a.ProviderRef != b.ProviderRef && a.ProviderRef != "" && b.ProviderRef != ""
}
