package mcp

import (
	"cmp"
	"context"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/dispatch/internal/storable"
)

const maxProblemDetail = 1024 // characters

// judge says what is proven about a call.
func (t *tool) judge(ctx context.Context, e evidence, h hints) dispatch.Result {
	result := t.weigh(ctx, e)
	if result.Outcome == dispatch.Ambiguous && h.forbidRepeating(t.class) {
		result.Final = true
	}
	return result
}

func (t *tool) weigh(ctx context.Context, e evidence) dispatch.Result {
	switch {
	case !e.sent:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: e.class}
	case e.answer == nil && e.status > 299:
		v, _ := byStatus(e, nil)
		return dispatch.Result{Outcome: v.outcome, ErrorClass: v.class, HTTPStatus: e.status, RetryAfter: e.retryAfter}
	case e.answer == nil:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: e.class, HTTPStatus: e.status}
	}
	a, err := understand(e.answer)
	switch {
	case size(e.answer) > t.provider.limit:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "body_too_large", HTTPStatus: e.status}
	case err != nil:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "protocol", HTTPStatus: e.status}
	}
	return t.weighAnswer(ctx, e, a)
}

// size is about that of what would be stored.
func size(response *jsonrpc.Response) int64 {
	var fault *jsonrpc.Error
	if errors.As(response.Error, &fault) {
		return int64(len(fault.Message) + len(fault.Data))
	}
	return int64(len(response.Result))
}

func (t *tool) weighAnswer(ctx context.Context, e evidence, a *answer) dispatch.Result {
	v := t.verdict(ctx, e, a)
	result := dispatch.Result{
		Outcome: v.outcome, Final: v.final, ErrorClass: v.class, HTTPStatus: e.status,
		Replayed: a.meta[t.provider.replayedMeta] == true,
		Response: storable.JSON(a.body(), "application/json"),
		Healthy:  e.status == 0 && v.outcome == dispatch.Ambiguous, // over stdio an answer is all that says so
	}
	if v.outcome == dispatch.Completed {
		result.ProviderRef = t.find(ctx, a)
		if t.isAsked && t.reference != nil && result.ProviderRef == "" {
			result.Outcome, result.ErrorClass = dispatch.Ambiguous, "no_reference" // it found something else, or nothing
		}
		return result
	}
	result.RetryAfter = e.retryAfter
	if words := cmp.Or(a.message, a.text()); words != "" {
		result.Problem = &dispatch.Problem{Detail: storable.First(words, maxProblemDetail)}
	}
	return result
}

// find looks for the server's reference. An effect without one is still an
// effect, so nothing that goes wrong here matters.
func (t *tool) find(ctx context.Context, a *answer) string {
	if t.reference == nil {
		return ""
	}
	value, err := t.reference.Eval(ctx, a.view())
	if err != nil {
		return ""
	}
	text, err := render.Scalar(value)
	if err != nil {
		return ""
	}
	return storable.Reference(text)
}
