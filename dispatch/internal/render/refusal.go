package render

import (
	"context"
	"errors"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// Refusal is the result of a payload that a tool's expressions do not take.
// Asking again would end the same, unless it was time that ran out: that of
// the dispatch, or of an expression, for which a process that was suspended
// has as little.
func Refusal(ctx context.Context, err error) dispatch.Result {
	switch {
	case ctx.Err() != nil:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: failure.Context(ctx)}
	case errors.Is(err, context.DeadlineExceeded):
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "slow_expression", Healthy: true}
	}
	return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "unrenderable_request"}
}
