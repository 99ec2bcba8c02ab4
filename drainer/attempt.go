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

// attempt dispatches one row and decides what follows. It never returns
// without a settlement: every claimed row is accounted for.
func (l *lane) attempt(ctx context.Context, row *Row) Settlement {
	policy, configured := l.provider.Tools[row.Tuple.Operation()]
	switch {
	case !configured:
		l.observer.unconfigured(l.provider.Name, row)
		return release(row, unconfiguredDelay, "unconfigured_tool")
	case ctx.Err() != nil || !l.lease.holds():
		return release(row, 0, "")
	}
	started := time.Now()
	result := l.dispatch(ctx, policy, row)
	if ctx.Err() != nil && result.Outcome == dispatch.NotSent {
		return release(row, 0, "")
	}
	settlement := Settlement{
		Row:        row,
		StartedAt:  started,
		FinishedAt: time.Now(),
		Result:     result,
		Decision:   policy.Decide(row.history(started), result, rand.Float64()),
	}
	l.observer.attempted(l.provider.Name, &settlement)
	return settlement
}

func (l *lane) dispatch(ctx context.Context, policy dispatch.Policy, row *Row) (result dispatch.Result) {
	if !policy.MayStillSend(row.history(time.Now())) {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "key_ttl_expired"}
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			l.observer.panicked(l.provider.Name, row, fmt.Sprintf("%T", panicked), debug.Stack())
			result = dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "panic"}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, l.provider.Timeout)
	defer cancel()
	return l.provider.Adapter.Dispatch(ctx, dispatch.Request{
		Tuple:          row.Tuple,
		IdempotencyKey: row.Tuple.IdempotencyKey(),
		Payload:        row.Payload,
		Headers:        row.Headers,
		Attempt:        row.Attempt,
	})
}

// release gives a row back unsent; it costs none of its tries.
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
	return Settlement{
		Row:        row,
		StartedAt:  row.ClaimedAt,
		FinishedAt: time.Now(),
		Result:     result,
		Decision:   policy.Decide(row.history(row.ClaimedAt), result, rand.Float64()),
	}
}
