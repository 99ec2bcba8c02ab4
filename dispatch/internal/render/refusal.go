package render

import (
	"context"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// Refusal is the result of a payload that a tool's expressions do not take.
// Asking again would end the same, unless it was time that ran out.
func Refusal(ctx context.Context) dispatch.Result {
	if ctx.Err() != nil {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: failure.Context(ctx)}
	}
	return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "unrenderable_request"}
}
