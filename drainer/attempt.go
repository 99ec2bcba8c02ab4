package drainer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

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
	if !configured {
		l.observer.unconfigured(row.server(), row)
		return l.withdraw(row, unconfiguredDelay, "unconfigured_tool")
	}
	if row.Closed {
		halted := halt(row, policy)
		halted.Breaker = upstream.breaker.unproven(row)
		return halted
	}
	if row.Lookup && policy.Lookup == nil && !row.InSaga && elapsed(row.ClaimedAt)+row.SinceFirstSend < unknownLookupAfter {
		return l.withdraw(row, unconfiguredDelay, "lookup_unconfigured")
	}
	if !upstream.slots.acquire() {
		return l.withdraw(row, fleetInterval, "no_share")
	}
	defer upstream.slots.release()
	if reason := l.bars(upstream, row); reason != "" {
		return l.withdraw(row, fleetInterval, reason)
	}
	ctx := life.abort
	if life.stop.Err() != nil || ctx.Err() != nil || !l.lease.holds() {
		return l.withdraw(row, 0, "")
	}
	if l.closings.bars(row) {
		return l.withdraw(row, 0, "run_closed") // the claim that finds it again stops it
	}
	started := time.Now()
	result, change := l.dispatch(ctx, upstream, policy, row)
	if ctx.Err() != nil && result.Outcome == dispatch.NotSent {
		return l.withdraw(row, 0, "")
	}
	history := row.history(started)
	if row.Probe && result.Overloaded() && !result.Outcome.LeavesDoubt() {
		history.Tries-- // trying the provider was the fleet's errand: an outage must not use its rows up
	}
	settlement := Settlement{
		Row:        row,
		StartedAt:  started,
		FinishedAt: time.Now(),
		Result:     result,
		Decision:   policy.Decide(history, result, rand.Float64()),
		Breaker:    change,
	}
	settlement.BeginsSaga = beginsSaga(&settlement, policy)
	l.observer.attempted(&settlement, operationFor(row, policy))
	return settlement
}

// bars says why a claimed row must not be sent now; it is empty if it may be.
func (l *lane) bars(upstream *upstream, row *Row) string {
	if l.isPaused() {
		return "provider_paused"
	}
	return upstream.breaker.bars(row)
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

// dispatch sends a row, unless that could do harm, and reports what its end
// means for the provider's breaker.
func (l *lane) dispatch(ctx context.Context, upstream *upstream, policy dispatch.Policy, row *Row) (dispatch.Result, *BreakerChange) {
	if class := refusal(row, policy); class != "" {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class}, upstream.breaker.unproven(row)
	}
	result, panicked := l.call(ctx, upstream.provider, requestFor(row, policy), row)
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
	case !row.Lookup && !policy.MayStillSend(row.history(time.Time{})):
		return "key_ttl_expired"
	}
	return ""
}

func requestFor(row *Row, policy dispatch.Policy) dispatch.Request {
	request := dispatch.Request{
		Tuple:          row.Tuple,
		IdempotencyKey: row.Tuple.IdempotencyKey(),
		Payload:        row.Payload,
		Headers:        row.Headers,
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

func (l *lane) call(ctx context.Context, provider Provider, request dispatch.Request, row *Row) (result dispatch.Result, panicked bool) {
	defer func() {
		if cause := recover(); cause != nil {
			l.observer.panicked(provider.Name, row, fmt.Sprintf("%T", cause), debug.Stack())
			result, panicked = dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "panic"}, true
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, provider.Timeout)
	defer cancel()
	return provider.Adapter.Dispatch(ctx, request), false
}

// withdraw gives a row back unsent; a probe hands its turn on.
func (l *lane) withdraw(row *Row, delay time.Duration, class string) Settlement {
	settlement := release(row, delay, class)
	if upstream, known := l.upstreams[row.server()]; known {
		settlement.Breaker = upstream.breaker.unproven(row)
	}
	return settlement
}

// release ends an attempt that was none: it costs none of the row's tries.
func release(row *Row, delay time.Duration, class string) Settlement {
	result := dispatch.Result{Outcome: dispatch.Released, RetryAfter: delay, ErrorClass: class}
	return Settlement{
		Row:        row,
		FinishedAt: time.Now(),
		Result:     result,
		Decision:   dispatch.Policy{}.Decide(row.history(time.Time{}), result, 0),
	}
}

// lose judges a row whose worker died: it may have been sent as soon as it was
// claimed.
func lose(row *Row, policy dispatch.Policy) Settlement {
	result := dispatch.Result{Outcome: dispatch.Lost, ErrorClass: "worker_lost"}
	settlement := Settlement{
		Row:        row,
		StartedAt:  row.ClaimedAt,
		FinishedAt: time.Now(),
		Result:     result,
		Decision:   policy.Decide(row.history(row.ClaimedAt), result, rand.Float64()),
	}
	settlement.BeginsSaga = beginsSaga(&settlement, policy)
	return settlement
}

// halt ends the attempts of a forward row whose run goes back: nothing is sent
// any more, but what may have been applied must be known before it is undone.
func halt(row *Row, policy dispatch.Policy) Settlement {
	return Settlement{
		Row:        row,
		FinishedAt: time.Now(),
		Result:     dispatch.Result{Outcome: dispatch.Released, ErrorClass: "run_compensating"},
		Decision:   policy.Halt(row.history(time.Time{})),
	}
}

// beginsSaga holds for a forward step that failed for good. An undo that fails
// is never compensated itself.
func beginsSaga(s *Settlement, policy dispatch.Policy) bool {
	return policy.BeginsSaga && s.Row.Undoes == nil && s.Decision.Status == dispatch.StatusFailed
}
