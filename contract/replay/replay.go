// Package replay calls a provider to test whether it keeps its promises about
// repeated calls. The calls and their effects are real.
//
//	one fresh key:      first ─▶ the same again ─▶ another payload
//	another fresh key:  many at once
//	                         │
//	                         ▼ judge, by the class that the tool declares
//	                       Report
//
// It calls through the configured adapter, so it gets the same results as a daemon. It compares
// bodies byte for byte as they would be stored, after the parts that a jsonb column cannot hold
// have been replaced.
package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// Subject is the tool to be tested.
type Subject struct {
	Tool    string // by its full name: provider/operation
	Class   dispatch.Class
	Adapter dispatch.Adapter
}

// Plan holds the payloads and the number of the calls.
type Plan struct {
	Payload    json.RawMessage
	Other      json.RawMessage // another payload for the same key; nil: this is not tested
	Concurrent int             // how many calls at once with one key; 0: this is not tested
}

// ErrNothingPromised says that the tool's class promises nothing about repeated calls: each of them would
// have its own effect.
var ErrNothingPromised = errors.New("the tool is non_idempotent: each call would have its effect, and there is nothing to verify")

// Calls returns how often Run calls the provider at most.
func (p Plan) Calls() int {
	calls := 2 + p.Concurrent
	if p.Other != nil {
		calls++
	}
	return calls
}

// Run calls the provider and reports the results. Each run uses new keys, so it can be repeated. Run stops if the first
// call does not succeed, because then further calls would prove nothing.
func Run(ctx context.Context, subject Subject, plan Plan) (Report, error) {
	if subject.Class == dispatch.NonIdempotent {
		return Report{}, ErrNothingPromised
	}
	alone := freshTuple(subject.Tool, "alone")
	seen := evidence{first: subject.call(ctx, "first", alone, plan.Payload)}
	if seen.first.Outcome == dispatch.Completed {
		again := subject.call(ctx, "again", alone, plan.Payload)
		seen.again = &again
		if plan.Other != nil && subject.Class == dispatch.KeyIdempotent {
			other := subject.call(ctx, "other payload", alone, plan.Other)
			seen.other = &other
		}
		if subject.Class != dispatch.ReadOnly {
			seen.atOnce = subject.callAtOnce(ctx, plan)
		}
	}
	return report(subject, seen), nil
}

// freshTuple returns the tuple of a new intent.
func freshTuple(tool, step string) dispatch.Tuple {
	return dispatch.Tuple{AgentRunID: "verify-replay-" + uuid.NewString(), StepID: step, ToolName: tool, BusinessScope: "verify-replay"}
}

func (s Subject) call(ctx context.Context, step string, tuple dispatch.Tuple, payload json.RawMessage) Call {
	result := s.Adapter.Dispatch(ctx, dispatch.Request{
		Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: payload, Attempt: 1,
	})
	return Call{
		Step: step, Outcome: result.Outcome, HTTPStatus: result.HTTPStatus, Error: result.ErrorClass,
		Replayed: result.Replayed, ProviderRef: result.ProviderRef, body: result.Response,
	}
}

// callAtOnce starts all calls at the same time, with one key.
func (s Subject) callAtOnce(ctx context.Context, plan Plan) []Call {
	together := freshTuple(s.Tool, "together")
	calls := make([]Call, plan.Concurrent)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() {
			<-start
			calls[i] = s.call(ctx, "at once", together, plan.Payload)
		})
	}
	close(start)
	group.Wait()
	return calls
}

// keyedAtOnce checks calls at once of a tool with a key. One call may have the effect. The others must be replays, or
// be refused as in flight.
func (e evidence) keyedAtOnce() Check {
	check := e.harmlessAtOnce()
	check.Expected = "one effect; the others replayed or in_flight"
	if check.Verdict == Failed {
		return check
	}
	if unmarked, nameless := unproven(e.atOnce); unmarked > 1 && nameless > 0 {
		check.Verdict = Failed
		check.Advice = "without a replay marker or a provider reference two effects look alike; set http.response.ref"
	}
	return check
}

// unproven counts the successes without a replay marker, which may be effects of their own, and those of them that have
// no provider reference either.
func unproven(calls []Call) (unmarked, nameless int) {
	for _, call := range calls {
		if call.Outcome != dispatch.Completed || call.Replayed {
			continue
		}
		unmarked++
		if call.ProviderRef == "" {
			nameless++
		}
	}
	return unmarked, nameless
}

// namelessAtOnce checks calls at once of a tool without a key. It warns if no answer has a provider reference, since one
// effect then looks like several.
func (e evidence) namelessAtOnce() Check {
	check := e.harmlessAtOnce()
	if check.Verdict == OK && len(references(e.atOnce)) == 0 {
		check.Verdict, check.Advice = Warning, "no answer names its effect, so one effect looks like several; set http.response.ref"
	}
	return check
}

// harmlessAtOnce checks that calls at once had at most one effect and that none was rejected, with a key or without.
func (e evidence) harmlessAtOnce() Check {
	check := Check{Name: "calls at once", Verdict: OK, Seen: summary(e.atOnce), Expected: "one effect; none rejected"}
	by := count(e.atOnce)
	switch effects := len(references(e.atOnce)); {
	case len(e.atOnce) == 0:
		check.Verdict, check.Advice = Skipped, "give --concurrent"
	case effects > 1:
		check.Verdict, check.Advice = Failed, fmt.Sprintf("the provider acted %d times", effects)
	case by[dispatch.Rejected] > 0:
		check.Verdict, check.Advice = Failed, "drainer would give up while the effect is under way; the refusal must be read as in_flight"
	case by[dispatch.Completed] == 0:
		check.Verdict, check.Advice = Failed, "none succeeded, which shows nothing; run it again"
	case by[dispatch.Completed]+by[dispatch.InFlight] < len(e.atOnce):
		check.Verdict, check.Advice = Warning, "some answers show nothing"
	}
	return check
}

// effects checks that the provider named at most one effect for each key.
func (e evidence) effects() Check {
	check := Check{Name: "provider references", Verdict: OK, Expected: "one a key"}
	alone, together := len(references(e.alone())), len(references(e.atOnce))
	check.Seen = fmt.Sprintf("%d under the first key, %d under the second", alone, together)
	switch {
	case alone > 1 || together > 1:
		check.Verdict, check.Advice = Failed, "the provider acted more than once under one key"
	case alone == 0:
		check.Verdict, check.Seen, check.Advice = Warning, "none", "set http.response.ref, so that effects can be distinguished"
	}
	return check
}

func count(calls []Call) map[dispatch.Outcome]int {
	by := map[dispatch.Outcome]int{}
	for _, call := range calls {
		by[call.Outcome]++
	}
	return by
}

// references returns the provider references of the successful calls.
func references(calls []Call) map[string]bool {
	distinct := map[string]bool{}
	for _, call := range calls {
		if call.Outcome == dispatch.Completed && call.ProviderRef != "" {
			distinct[call.ProviderRef] = true
		}
	}
	return distinct
}

// summary counts equal answers, such as "7 × completed, HTTP 200, replayed".
func summary(calls []Call) string {
	counts := map[string]int{}
	for _, call := range calls {
		counts[call.String()]++
	}
	var parts []string
	for _, answer := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d × %s", counts[answer], answer))
	}
	return strings.Join(parts, "; ")
}

// String returns the answer in a few words, such as "rejected, HTTP 409".
func (c Call) String() string {
	text := string(c.Outcome)
	switch {
	case c.HTTPStatus != 0:
		text += fmt.Sprintf(", HTTP %d", c.HTTPStatus)
	case c.Error != "":
		text += ", " + c.Error
	}
	if c.Replayed {
		text += ", replayed"
	}
	return text
}

// evidence holds the results of all calls. again is nil if the first call failed. other is nil if there was no call with
// another payload.
type evidence struct {
	first        Call
	again, other *Call
	atOnce       []Call
}

// alone returns the calls under the first key.
func (e evidence) alone() []Call {
	calls := []Call{e.first}
	for _, call := range []*Call{e.again, e.other} {
		if call != nil {
			calls = append(calls, *call)
		}
	}
	return calls
}

// judge returns the checks of the promises that the class makes.
func (e evidence) judge(class dispatch.Class) []Check {
	checks := []Check{e.firstCall()}
	if e.again == nil {
		return checks
	}
	switch class {
	case dispatch.KeyIdempotent:
		return append(checks, e.sameCall(), e.marker(), e.body(), e.otherPayload(), e.keyedAtOnce(), e.effects())
	case dispatch.NaturallyIdempotent:
		return append(checks, e.repetition(), e.namelessAtOnce(), e.effects())
	default:
		return append(checks, e.repetition())
	}
}

// unavailable are outcomes of the first call that show an outage, so that they prove nothing about a promise.
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

// sameCall checks whether the provider recognised the key. A success does not prove that: the answer must have the
// replay marker, or the same provider reference.
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
	check := Check{Name: "same body", Verdict: OK, Seen: "equal, byte for byte", Expected: "that of the first call"}
	switch {
	case !bytes.Equal(e.first.body, e.again.body):
		check.Verdict, check.Seen, check.Advice = Failed, "different", "the provider does not answer with what it saved"
	case len(e.first.body) == 0:
		check.Verdict, check.Seen, check.Advice = Skipped, "both empty", "no body was stored, so there was nothing to compare"
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
		check.Advice = "drainer would try again and again; let the two refusals differ"
	case e.other.Outcome != dispatch.Completed:
		check.Advice = "the answer shows nothing; run it again"
	case !recognised(e.first, *e.other):
		check.Advice = "the provider may have acted on the other payload"
	default:
		check.Verdict, check.Advice = Warning, "the provider answers for the first payload without a word; it will not notice a mistaken key"
	}
	return check
}

// repetition checks a second call of a class without a key: it must succeed, and name no other effect.
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

// recognised reports whether an answer proves that it is about the effect of the first call.
func recognised(first, again Call) bool {
	if first.ProviderRef != "" && again.ProviderRef != "" {
		return first.ProviderRef == again.ProviderRef
	}
	return again.Replayed
}

// differ reports whether two answers have different provider references.
func differ(a, b Call) bool {
	return a.ProviderRef != b.ProviderRef && a.ProviderRef != "" && b.ProviderRef != ""
}

// Report compares the provider's behaviour with the tool's declaration.
type Report struct {
	Tool   string         `json:"tool"`
	Class  dispatch.Class `json:"class"`
	Passed bool           `json:"passed"` // the provider was available, and no check failed
	Checks []Check        `json:"checks"`
	Calls  []Call         `json:"calls"`
}

// Check is one check and its result.
type Check = dispatchtest.Check

// Verdict is the result of a check.
type Verdict = dispatchtest.Verdict

const (
	OK        = dispatchtest.OK
	Warning   = dispatchtest.Warning   // a fault, but no effect is at risk
	Failed    = dispatchtest.Failed    // the provider breaks a promise that the tool declares
	Skipped   = dispatchtest.Skipped   // there was no call for this check
	NoVerdict = dispatchtest.NoVerdict // the provider was not available
)

// Call is one request and its answer, without the answer's body.
type Call struct {
	Step        string           `json:"step"`
	Outcome     dispatch.Outcome `json:"outcome"`
	HTTPStatus  int              `json:"http_status,omitempty"`
	Error       string           `json:"error,omitempty"`
	Replayed    bool             `json:"replayed"`
	ProviderRef string           `json:"provider_ref,omitempty"`

	body json.RawMessage
}

func report(subject Subject, seen evidence) Report {
	checks := seen.judge(subject.Class)
	return Report{
		Tool: subject.Tool, Class: subject.Class, Passed: dispatchtest.Passed(checks),
		Checks: checks, Calls: append(seen.alone(), seen.atOnce...),
	}
}

// Unavailable reports whether the provider was not available, so that its promises were not tested.
func (r Report) Unavailable() bool {
	return slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Verdict == NoVerdict })
}
