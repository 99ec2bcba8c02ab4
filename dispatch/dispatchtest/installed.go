package dispatchtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agentoutbox/drainer/dispatch"
	storable "github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// Installed is an adapter with a real configuration. Its counterpart cannot be directed, and requests have real
// effects.
type Installed struct {
	Provider string
	Adapter  dispatch.Adapter
	Tools    map[string]dispatch.Class // by operation
	Timeout  time.Duration             // the longest one dispatch may take
	Secrets  []string                  // secrets of the configuration, which no result may show
}

// grace is how long after its timeout a dispatch may return.
const grace = 5 * time.Second

// Report holds the checks of one adapter.
type Report struct {
	Provider string  `json:"provider"`
	Tool     string  `json:"tool,omitempty"` // "" if nothing was sent
	Passed   bool    `json:"passed"`
	Checks   []Check `json:"checks"`
}

func (i Installed) report(tool string, checks []Check) Report {
	return Report{Provider: i.Provider, Tool: tool, Passed: Passed(checks), Checks: checks}
}

// Quiet makes all checks that send nothing, and closes the adapter.
func (i Installed) Quiet(ctx context.Context) Report {
	s := newSession(ctx, i)
	checks := append(s.quiet(), unsentQuestions()...)
	return i.report("", append(checks, s.end()...))
}

// Live makes the checks of Quiet and then sends requests, with real effects. It closes the adapter.
func (i Installed) Live(ctx context.Context, plan LivePlan) Report {
	s := newSession(ctx, i)
	checks := append(s.quiet(), s.live(plan)...)
	return i.report(i.Provider+"/"+plan.Operation, append(checks, s.end()...))
}

// session is one run of checks on an installed adapter.
type session struct {
	Installed
	ctx   context.Context
	owner owner
	run   string // differs from every other session
	seen  []Seen
}

func newSession(ctx context.Context, installed Installed) *session {
	return &session{Installed: installed, ctx: ctx, owner: newOwner(), run: uuid.NewString()}
}

// request returns an attempt at an intent that no other step has.
func (s *session) request(operation, step string) dispatch.Request {
	tuple := dispatch.Tuple{AgentRunID: "verify-adapter-" + s.run, StepID: step, ToolName: s.Provider + "/" + operation, BusinessScope: "verify-adapter"}
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Attempt: 1, Headers: traceContext()}
}

// dispatch makes one attempt within a limit.
func (s *session) dispatch(request dispatch.Request, limit time.Duration) Seen {
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	return s.dispatchUntil(ctx, request, limit)
}

func (s *session) dispatchUntil(ctx context.Context, request dispatch.Request, limit time.Duration) Seen {
	seen := observe(ctx, s.Adapter, request, s.owner, limit+grace)
	s.seen = append(s.seen, seen)
	return seen
}

func (s *session) quiet() []Check {
	unknown := s.request("no_such_operation_"+s.run, "unknown")
	unknown.Payload = []byte(`null`)
	return []Check{
		found("builds", s.Adapter != nil, "built", "an adapter", ""),
		s.handshake(),
		unknownOperation(s.dispatch(unknown, s.Timeout)),
		s.cancelled(),
	}
}

// Handshake is the name of the check that connects to the adapter's counterpart.
const Handshake = "handshake"

// handshake makes the adapter start or reach its counterpart. If the adapter cannot do that without an intent, the
// check is skipped.
func (s *session) handshake() Check {
	const name, expected = Handshake, "the other side answers, and offers every tool"
	greeter, greets := s.Adapter.(dispatch.Greeter)
	if !greets {
		return skipped(name, expected, "this adapter speaks with its provider only to send an intent; give --tool and --payload")
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.Timeout)
	defer cancel()
	seen := observe(ctx, greeting{greeter}, s.request("", "handshake"), s.owner, s.Timeout+grace)
	check := found(name, seen.ended(dispatch.Completed), seen.String(), expected,
		"see the adapter's own log (an exec child's stderr is above) and its error class in docs/adapters")
	if problem := seen.Result.Problem; problem != nil {
		check.Seen += ": " + problem.Title
		if problem.Detail != "" && !containsAny(problem.Detail, s.longSecrets()) {
			check.Seen += ": " + storable.First(problem.Detail, longestDetail)
		}
	}
	return check
}

// longestDetail is the longest detail of a problem that is shown, in characters.
const longestDetail = 300

// greeting makes a handshake look like a dispatch, so that observe can run it.
type greeting struct{ dispatch.Greeter }

func (g greeting) Dispatch(ctx context.Context, _ dispatch.Request) dispatch.Result {
	return g.Greet(ctx)
}

// unsentQuestions returns the checks that need a sent request, as skipped.
func unsentQuestions() (all []Check) {
	for _, question := range []struct{ name, expected string }{
		{"first call", "completed"},
		{"same call again", "completed by the same effect"},
		{"intents at once", "all"},
		{"tiny deadline", "not_sent or ambiguous, unless it was faster"},
	} {
		all = append(all, skipped(question.name, question.expected, "it sends; give --tool, --payload and --yes"))
	}
	return all
}

// cancelled uses the tool of the safest class, in case the adapter sends the request anyway.
func (s *session) cancelled() Check {
	tools := make([]string, 0, len(s.Tools))
	for operation := range s.Tools {
		tools = append(tools, operation)
	}
	slices.Sort(tools)
	slices.SortStableFunc(tools, func(a, b string) int {
		return slices.Index(dispatch.Classes(), s.Tools[a]) - slices.Index(dispatch.Classes(), s.Tools[b])
	})
	if len(tools) == 0 {
		return skipped("cancelled before", "not_sent", "the provider has no tool")
	}
	request := s.request(tools[0], "cancelled")
	request.Payload = []byte(`{}`)
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	return unwanted("cancelled before", s.dispatchUntil(ctx, request, 0))
}

// end judges all dispatches, closes the adapter and checks for goroutines that remain.
func (s *session) end() []Check {
	checks := append(judge(s.seen), s.discretion())
	if slices.ContainsFunc(s.seen, func(seen Seen) bool { return seen.Hung }) {
		return checks
	}
	ended := skipped("closes", "Close returns soon and without an error", "this adapter has no Close")
	if closer, ok := s.Adapter.(io.Closer); ok {
		ended = closed(bounded(s.owner, "Close", grace, closer.Close))
	}
	return append(checks, ended, left(s.owner.awaitNone(grace)))
}

// longSecrets returns the secrets that are long enough not to be ordinary words.
func (s *session) longSecrets() []string {
	return slices.DeleteFunc(slices.Clone(s.Secrets), func(secret string) bool { return len(secret) < canaryLength })
}

// discretion checks that results repeat no secret. A secret in the adapter's own text is a failure, and in the
// counterpart's response a warning.
func (s *session) discretion() Check {
	secrets := s.longSecrets()
	const name, expected = "no secret of the configuration", "a result that repeats none"
	switch {
	case len(secrets) == 0:
		return skipped(name, expected, "the configuration holds no secret of 8 bytes or more that could be looked for")
	case slices.ContainsFunc(s.seen, func(seen Seen) bool { return containsAny(complaint(seen.Result), secrets) }):
		return found(name, false, "in an error class or a problem", expected, "results are stored and shown; do not use this adapter")
	case slices.ContainsFunc(s.seen, func(seen Seen) bool { return containsAny(everything(seen.Result), secrets) }):
		return Check{Name: name, Verdict: Warning, Seen: "in a response", Expected: expected, Advice: "the provider repeats what the configuration holds; it is stored with the attempt"}
	}
	return found(name, true, fmt.Sprintf("none in %d results", len(s.seen)), expected, "")
}

// LivePlan describes the requests of [Installed.Live].
type LivePlan struct {
	Operation  string
	Payload    json.RawMessage
	Concurrent int // intents at once, each with its effect
}

// tinyDeadline ends before nearly any answer can arrive.
const tinyDeadline = 100 * time.Microsecond

// Calls returns the most requests that Live sends to a tool of that class.
func (p LivePlan) Calls(class dispatch.Class) int {
	calls := 2 + p.Concurrent
	if class != dispatch.NonIdempotent {
		calls++
	}
	return calls
}

// live stops if the first call does not succeed: then the other calls would prove nothing.
func (s *session) live(plan LivePlan) []Check {
	first := s.send(plan, "first")
	checks := []Check{firstCall(first)}
	if !first.ended(dispatch.Completed) {
		for _, question := range unsentQuestions()[1:] {
			question.Advice = "the first call did not succeed, so it would prove nothing"
			checks = append(checks, question)
		}
		return checks
	}
	return append(checks, s.sameCall(plan, first), s.callsAtOnce(plan), s.tinyDeadline(plan))
}

func (s *session) send(plan LivePlan, step string) Seen {
	return s.dispatch(s.planned(plan, step), s.Timeout)
}

func (s *session) planned(plan LivePlan, step string) dispatch.Request {
	request := s.request(plan.Operation, step)
	request.Payload = plan.Payload
	return request
}

// unavailable are outcomes that depend on the state of the counterpart, not on the adapter.
var unavailable = []dispatch.Outcome{dispatch.NotSent, dispatch.Throttled, dispatch.Ambiguous, dispatch.InFlight}

func firstCall(seen Seen) Check {
	check := found("first call", seen.ended(dispatch.Completed), seen.String(), "completed", "give a payload that the provider accepts; nothing else was sent")
	if seen.ended(unavailable...) {
		check.Verdict, check.Advice = NoVerdict, "the provider was not available, or its answer is not understood; nothing else was sent"
	}
	return check
}

// sameCall repeats a call under its key, as the engine does after an ambiguous outcome.
func (s *session) sameCall(plan LivePlan, first Seen) Check {
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
		check.Verdict, check.Advice = Warning, "nothing shows that the key was recognised; see drainer verify replay"
	}
	return check
}

// callsAtOnce sends different intents at the same time.
func (s *session) callsAtOnce(plan LivePlan) Check {
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

func (s *session) tinyDeadline(plan LivePlan) Check {
	seen := s.dispatch(s.planned(plan, "in no time"), tinyDeadline)
	check := found("tiny deadline", seen.ended(dispatch.NotSent, dispatch.Ambiguous, dispatch.Completed), seen.String(), "not_sent or ambiguous, unless it was faster",
		"a deadline is no refusal")
	if check.Verdict == OK && seen.Took > tinyDeadline+grace/5 {
		check.Verdict, check.Advice = Failed, fmt.Sprintf("it returned only after %s; Dispatch must return soon after ctx ends", seen.Took.Round(time.Millisecond))
	}
	return check
}
