package drainer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/agentoutbox/drainer/internal/failpoint"

	"github.com/agentoutbox/drainer/dispatch"
)

// unconfiguredDelay keeps a row that no tool is configured for from spinning,
// while a worker that knows the tool can still pick it up.
const unconfiguredDelay = time.Minute

// unknownLookupAfter is how long a row in doubt waits, since it may first have
// been sent, for a worker that knows how to look it up.
const unknownLookupAfter = 15 * time.Minute

// attempt dispatches one row and decides what follows. It never returns
// without a settlement: every claimed row is accounted for.
func (l *lane) attempt(life lifetimes, row *Row) Settlement {
	upstream, policy, configured := l.route(row)
	row = answerable(row, policy)
	switch {
	case !configured:
		l.observer.unconfigured(row.server(), row)
		return l.withdraw(row, unconfiguredDelay, "unconfigured_tool")
	case row.Closed:
		return l.halt(row, policy)
	case lacksLookup(row, policy):
		return l.withdraw(row, unconfiguredDelay, "lookup_unconfigured")
	case !upstream.slots.acquire():
		return l.withdraw(row, fleetInterval, "no_share")
	}
	defer upstream.slots.release()
	if withheld, is := l.withhold(life, upstream, row); is {
		return withheld
	}
	failpoint.BeforeSend.Hit()
	return l.send(life.abort, upstream, policy, row)
}

// withhold is asked right before a row is sent: it may have waited for a slot.
func (l *lane) withhold(life lifetimes, upstream *upstream, row *Row) (Settlement, bool) {
	switch {
	case life.stop.Err() != nil || life.abort.Err() != nil || !l.lease.holds():
		return l.withdraw(row, 0, ""), true
	case l.isPaused():
		return l.withdraw(row, fleetInterval, "provider_paused"), true
	case !upstream.breaker.passes(row):
		return l.withdraw(row, fleetInterval, "circuit_open"), true
	case l.closings.bars(row):
		return l.withdraw(row, 0, "run_closed"), true // the claim that finds it again stops it
	}
	return Settlement{}, false
}

func (l *lane) send(ctx context.Context, upstream *upstream, policy dispatch.Policy, row *Row) Settlement {
	ctx, row.spans = l.tracing.begin(ctx, row, policy)
	started := time.Now()
	result, change := l.dispatch(ctx, upstream, policy, row)
	if ctx.Err() != nil && result.Outcome == dispatch.NotSent {
		return l.withdraw(row, 0, "")
	}
	finished := time.Now()
	history := row.History(started, finished)
	if row.Probe && result.Overloaded() && !result.Outcome.LeavesDoubt() {
		history.Tries-- // trying the provider was the fleet's errand: an outage must not use its rows up
	}
	settlement := Settlement{
		Row:        row,
		StartedAt:  started,
		FinishedAt: finished,
		Result:     result,
		Decision:   policy.Decide(history, result, rand.Float64()),
		Breaker:    change,
		Acts:       policy.Class != dispatch.ReadOnly,
	}
	settlement.BeginsSaga = beginsSaga(&settlement, policy)
	l.observer.attempted(&settlement, operationFor(row, policy))
	row.spans.dispatched(&settlement)
	return settlement
}

// route finds who is to serve a row. It reports false for a tool, or a
// fallback, that is not configured here.
func (l *lane) route(row *Row) (*upstream, dispatch.Policy, bool) {
	upstream, configured := l.upstreams[row.server()]
	if !configured {
		return nil, dispatch.Policy{}, false
	}
	policy, configured := upstream.provider.Tools[row.Tuple.Operation()]
	return upstream, policy, configured
}

// answerable turns a question that no tool answers into the act itself, where
// repeating that is as good as asking. A forward step of a run that goes back
// is never repeated: the saga may have passed it by.
func answerable(row *Row, policy dispatch.Policy) *Row {
	isClosed := row.InSaga && row.Undoes == nil
	if !row.Lookup || isClosed || policy.Lookup != nil || policy.Class == "" || policy.Class == dispatch.NonIdempotent {
		return row
	}
	acting := *row
	acting.Lookup = false
	if !policy.MayStillSend(acting.History(time.Time{}, time.Now())) {
		return row
	}
	return &acting
}

// lacksLookup holds for a while for a row that waits to be looked up by a tool
// that is not configured here, or not any more. A saga cannot wait.
func lacksLookup(row *Row, policy dispatch.Policy) bool {
	return row.Lookup && policy.Lookup == nil && !row.InSaga && elapsed(row.ClaimedAt)+row.SinceFirstSend < unknownLookupAfter
}

// dispatch sends a row, unless that could do harm, and reports what its end
// means for the provider's breaker.
func (l *lane) dispatch(ctx context.Context, upstream *upstream, policy dispatch.Policy, row *Row) (dispatch.Result, *BreakerChange) {
	if class := refusal(row, policy); class != "" {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class}, upstream.breaker.unproven(row)
	}
	if violation := violationOf(row, policy); violation != nil {
		result := dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "payload_schema", Problem: violation}
		return result, upstream.breaker.unproven(row)
	}
	result, panicked := l.call(ctx, &upstream.provider, requestFor(row, policy), row)
	if panicked || ctx.Err() != nil { // our own doing: that says nothing of the provider
		return result, upstream.breaker.unproven(row)
	}
	return result, upstream.breaker.saw(result, row.Probe)
}

// refusal says why a claimed row must not leave any more; it is empty if it may.
func refusal(row *Row, policy dispatch.Policy) string {
	switch {
	case row.Lookup && policy.Lookup == nil:
		return "lookup_unconfigured"
	case row.Lookup || policy.MayStillSend(row.History(time.Time{}, time.Now())):
		return ""
	case policy.Class == dispatch.NonIdempotent:
		return "not_repeatable"
	}
	return "key_ttl_expired"
}

// violationOf looks at what is to be sent. A lookup sends nothing that acts.
func violationOf(row *Row, policy dispatch.Policy) *dispatch.Problem {
	if row.Lookup || policy.Payload == nil {
		return nil
	}
	return policy.Payload.Violation(row.Payload)
}

func requestFor(row *Row, policy dispatch.Policy) dispatch.Request {
	request := dispatch.Request{
		Tuple:          row.Tuple,
		IdempotencyKey: row.idempotencyKey(),
		Payload:        row.Payload,
		Headers:        row.spans.continued(row.Headers),
		Attempt:        row.Attempt,
	}
	if row.Lookup {
		request.Tuple.ToolName = row.server() + "/" + policy.Lookup.Operation
		request.ProviderRef = row.ProviderRef
	}
	return request
}

// operationFor is what is called: for a lookup, the tool that answers it.
func operationFor(row *Row, policy dispatch.Policy) string {
	if row.Lookup && policy.Lookup != nil {
		return policy.Lookup.Operation
	}
	return row.Tuple.Operation()
}

func (l *lane) call(ctx context.Context, provider *Provider, request dispatch.Request, row *Row) (result dispatch.Result, panicked bool) {
	defer func() {
		if cause := recover(); cause != nil {
			l.observer.panicked(provider.Name, row, fmt.Sprintf("%T", cause), debug.Stack())
			result, panicked = dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "panic"}, true
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, provider.Timeout)
	defer cancel()
	result = provider.Adapter.Dispatch(ctx, request)
	failpoint.AfterReply.Hit()
	return result, false
}
