package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Plan says what to send.
type Plan struct {
	Operation  string
	Payload    json.RawMessage
	Concurrent int // intents at once, each with its effect
}

// tinyDeadline is over before nearly any answer can come.
const tinyDeadline = 100 * time.Microsecond

// Calls is the most that Live sends to a tool of that class.
func (p Plan) Calls(class dispatch.Class) int {
	calls := 2 + p.Concurrent
	if class != dispatch.NonIdempotent {
		calls++
	}
	return calls
}

// live stops after a first call that does not succeed: what follows would
// prove nothing.
func (s *session) live(plan Plan) []Check {
	first := s.send(plan, "first")
	checks := []Check{firstCall(first)}
	if !first.ended(dispatch.Completed) {
		return checks
	}
	return append(checks, s.sameCall(plan, first), s.callsAtOnce(plan), s.tinyDeadline(plan))
}

func (s *session) send(plan Plan, step string) Seen {
	return s.dispatch(s.planned(plan, step), s.Timeout)
}

func (s *session) planned(plan Plan, step string) dispatch.Request {
	request := s.request(plan.Operation, step)
	request.Payload = plan.Payload
	return request
}

// unavailable are outcomes that tell of the counterpart's state, not of the
// adapter.
var unavailable = []dispatch.Outcome{dispatch.NotSent, dispatch.Throttled, dispatch.Ambiguous, dispatch.InFlight}

func firstCall(seen Seen) Check {
	check := found("first call", seen.ended(dispatch.Completed), seen.String(), "completed", "give a payload that the provider accepts; nothing else was sent")
	if seen.ended(unavailable...) {
		check.Verdict, check.Advice = NoVerdict, "the provider was not available, or its answer is not understood; nothing else was sent"
	}
	return check
}

// sameCall repeats a call under its key, as the engine does after doubt.
func (s *session) sameCall(plan Plan, first Seen) Check {
	const name = "same call again"
	class := s.Tools[plan.Operation]
	if class == dispatch.NonIdempotent {
		return skipped(name, "nothing", "the tool is non_idempotent: it would have its effect again")
	}
	again := s.send(plan, "first")
	check := found(name, again.ended(dispatch.Completed), again.String(), "completed", "a repetition must not be taken for a failure: the engine repeats what may be repeated")
	if check.Verdict == Failed || class != dispatch.KeyIdempotent {
		return check
	}
	check.Expected = "completed by the same effect"
	a, b := first.Result.ProviderRef, again.Result.ProviderRef
	switch {
	case a != "" && b != "" && a != b:
		check.Verdict, check.Seen = Failed, check.Seen+", another provider reference"
		check.Advice = "the provider acted twice under one key, or the adapter does not send it"
	case !again.Result.Replayed && (a == "" || b == ""):
		check.Verdict, check.Advice = Warning, "nothing shows that the key was recognised; drainer verify replay tells more"
	}
	return check
}

// callsAtOnce starts different intents together.
func (s *session) callsAtOnce(plan Plan) Check {
	together := make([]Seen, plan.Concurrent)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range together {
		alone := &session{Installed: s.Installed, ctx: s.ctx, owner: s.owner, run: s.run}
		group.Go(func() {
			<-start
			together[i] = alone.send(plan, fmt.Sprintf("at once %d", i))
		})
	}
	close(start)
	group.Wait()
	s.seen = append(s.seen, together...)
	check := allCompleted(together)
	check.Name = "intents at once"
	isLost := func(seen Seen) bool { return !seen.ended(dispatch.Completed, dispatch.Throttled, dispatch.NotSent) }
	if check.Verdict == Failed && !slices.ContainsFunc(together, isLost) {
		check.Verdict, check.Advice = Warning, "the rest would be tried again; lower concurrency, or set rate_limit"
	}
	return check
}

func (s *session) tinyDeadline(plan Plan) Check {
	seen := s.dispatch(s.planned(plan, "in no time"), tinyDeadline)
	check := found("tiny deadline", seen.ended(dispatch.NotSent, dispatch.Ambiguous, dispatch.Completed), seen.String(), "not_sent or ambiguous, unless it was faster",
		"a deadline is no refusal")
	if check.Verdict == OK && seen.Took > tinyDeadline+grace/5 {
		check.Verdict, check.Advice = Failed, fmt.Sprintf("it returned only after %s; Dispatch must return soon after ctx ends", seen.Took.Round(time.Millisecond))
	}
	return check
}
