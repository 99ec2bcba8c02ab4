package conformance

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/agentoutbox/drainer/dispatch"
)

// Installed is an adapter that is configured already. Its counterpart behaves
// as it does, and what is sent has its effect.
type Installed struct {
	Provider string
	Adapter  dispatch.Adapter
	Tools    map[string]dispatch.Class // by operation
	Timeout  time.Duration             // the longest one dispatch may take
	Secrets  []string                  // what the configuration got from elsewhere and must not show
}

// grace is how long after its timeout a dispatch may return.
const grace = 5 * time.Second

// Report is what was found.
type Report struct {
	Provider string  `json:"provider"`
	Tool     string  `json:"tool,omitempty"` // empty where nothing was sent
	Passed   bool    `json:"passed"`
	Checks   []Check `json:"checks"`
}

func (i Installed) report(tool string, checks []Check) Report {
	return Report{Provider: i.Provider, Tool: tool, Passed: Passed(checks), Checks: checks}
}

// Quiet asks what can be asked without sending anything, and closes the
// adapter.
func (i Installed) Quiet(ctx context.Context) Report {
	s := newSession(ctx, i)
	return i.report("", append(s.quiet(), s.end()...))
}

// Live asks that too, and then sends, with real effects. It closes the adapter.
func (i Installed) Live(ctx context.Context, plan Plan) Report {
	s := newSession(ctx, i)
	checks := append(s.quiet(), s.live(plan)...)
	return i.report(i.Provider+"/"+plan.Operation, append(checks, s.end()...))
}

// session is what happens to an installed adapter in one run.
type session struct {
	Installed
	ctx   context.Context
	owner owner
	run   string // unlike that of any other session
	seen  []Seen
}

func newSession(ctx context.Context, installed Installed) *session {
	return &session{Installed: installed, ctx: ctx, owner: newOwner(), run: uuid.NewString()}
}

// request is an attempt at an intent that no other step has.
func (s *session) request(operation, step string) dispatch.Request {
	tuple := dispatch.Tuple{AgentRunID: "verify-adapter-" + s.run, StepID: step, ToolName: s.Provider + "/" + operation, BusinessScope: "verify-adapter"}
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Attempt: 1, Headers: traceContext()}
}

// dispatch makes one attempt with a limit of its own.
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
		unknownOperation(s.dispatch(unknown, s.Timeout)),
		s.cancelled(),
	}
}

// cancelled asks about the tool that would do the least, should the adapter
// send it all the same.
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

// end judges all dispatches, closes the adapter and looks at what it left.
func (s *session) end() []Check {
	checks := append(judge(s.seen), s.discretion())
	if slices.ContainsFunc(s.seen, func(seen Seen) bool { return seen.Hung }) {
		return checks
	}
	var err error
	if closer, ok := s.Adapter.(io.Closer); ok {
		err = bounded(s.owner, "Close", grace, closer.Close)
	}
	return append(checks, closed(err), left(s.owner.awaitNone(grace)))
}

// discretion tells what an adapter says from what its counterpart says.
func (s *session) discretion() Check {
	secrets := slices.DeleteFunc(slices.Clone(s.Secrets), func(secret string) bool { return len(secret) < canaryLength })
	const name, expected = "no secret of the configuration", "a result that tells none"
	switch {
	case slices.ContainsFunc(s.seen, func(seen Seen) bool { return containsAny(complaint(seen.Result), secrets) }):
		return found(name, false, "in an error class or a problem", expected, "results are stored and shown; do not use this adapter")
	case slices.ContainsFunc(s.seen, func(seen Seen) bool { return containsAny(everything(seen.Result), secrets) }):
		return Check{Name: name, Verdict: Warning, Seen: "in a response", Expected: expected, Advice: "the provider repeats what the configuration holds; it is stored with the attempt"}
	}
	return found(name, true, "none", expected, "")
}
