package http

import (
	"context"
	"net/http"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/dispatch/internal/retryafter"
	"github.com/agentoutbox/drainer/dispatch/internal/storable"
)

// judge reads a response and says what it proves.
func (t *tool) judge(ctx context.Context, response *http.Response) dispatch.Result {
	a := read(ctx, response, t.provider.limit)
	v := t.verdict(ctx, a)
	result := dispatch.Result{
		Outcome:         v.outcome,
		Final:           v.final,
		HTTPStatus:      a.status,
		ErrorClass:      v.class,
		Replayed:        t.provider.isReplay(a.header),
		Response:        storable.JSON(a.body, a.contentType()),
		ResponseHeaders: t.provider.captured(a.header),
	}
	if v.outcome == dispatch.Completed {
		result.ProviderRef = t.find(ctx, a)
		if t.isAsked && t.reference != nil && result.ProviderRef == "" {
			result.Outcome, result.ErrorClass = dispatch.Ambiguous, "no_reference" // it found something else, or nothing
		}
		return result
	}
	details := problemDetails(a)
	result.Problem = details.problem()
	result.RetryAfter = max(v.retryAfter, retryafter.Header(a.header, a.readAt), details.retryAfter())
	return result
}

func (p *provider) captured(header http.Header) map[string]string {
	var captured map[string]string
	for _, name := range p.capture {
		if values := header.Values(name); len(values) > 0 {
			if captured == nil {
				captured = make(map[string]string, len(p.capture))
			}
			captured[name] = storable.Text(strings.Join(values, ", "))
		}
	}
	return captured
}

// find looks for the provider's reference. An effect without one is still an
// effect, so nothing that goes wrong here matters.
func (t *tool) find(ctx context.Context, a *answer) string {
	if t.reference == nil {
		return ""
	}
	value, err := t.reference.Eval(ctx, a.json())
	if err != nil {
		return ""
	}
	text, err := render.Scalar(value)
	if err != nil {
		return ""
	}
	return storable.Reference(text)
}
