package http

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

const maxReference = 255 // characters

// judge reads a response and says what it proves.
func (t *tool) judge(ctx context.Context, response *http.Response) dispatch.Result {
	body, err := readBody(response.Body, t.provider.limit)
	result := dispatch.Result{
		Outcome:         t.outcome(response.StatusCode, response.Header, body),
		HTTPStatus:      response.StatusCode,
		Replayed:        isReplay(response.Header),
		ResponseHeaders: t.provider.captured(response.Header),
	}
	if err == nil {
		result.Response = storable(body, response.Header.Get("Content-Type"))
	}
	switch {
	case result.Outcome != dispatch.Completed:
		result.ErrorClass = statusClass(response.StatusCode)
		result.RetryAfter = retryAfter(response.Header, time.Now())
	case err != nil:
		result.Outcome, result.ErrorClass = dispatch.Ambiguous, bodyClass(ctx, err)
	case isMalformed(body, response.Header.Get("Content-Type")):
		result.Outcome, result.ErrorClass = dispatch.Ambiguous, "malformed_body"
	default:
		result.ProviderRef = t.find(ctx, body)
	}
	return result
}

// outcome goes by the status; what the configuration says about it comes
// first.
func (t *tool) outcome(status int, header http.Header, body []byte) dispatch.Outcome {
	switch {
	case slices.Contains(t.success, status):
		return dispatch.Completed
	case slices.Contains(t.throttled, status):
		return dispatch.Throttled
	case status >= 200 && status <= 299:
		if len(t.success) > 0 {
			return dispatch.Ambiguous
		}
		return dispatch.Completed
	}
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, 529: // 529: overloaded
		return dispatch.Throttled
	case http.StatusTooEarly:
		return dispatch.InFlight
	case http.StatusConflict:
		if saysInFlight(header, body) {
			return dispatch.InFlight
		}
		return dispatch.Rejected
	case http.StatusRequestTimeout:
		return dispatch.Ambiguous
	}
	if status >= 300 && status <= 499 {
		return dispatch.Rejected
	}
	return dispatch.Ambiguous
}

// saysInFlight tells the two meanings of 409 apart: still busy with this key,
// or refused. Only the first is worth another attempt, and providers say so
// with a Retry-After or in their problem details (RFC 9457).
func saysInFlight(header http.Header, body []byte) bool {
	if header.Get("Retry-After") != "" {
		return true
	}
	if mediaType(header.Get("Content-Type")) != "application/problem+json" {
		return false
	}
	var problem struct{ Type, Title, Detail, Code string }
	if err := json.Unmarshal(body, &problem); err != nil {
		return false
	}
	text := strings.ToLower(problem.Type + " " + problem.Title + " " + problem.Detail + " " + problem.Code)
	text = strings.NewReplacer("-", " ", "_", " ").Replace(text)
	return slices.ContainsFunc([]string{"outstanding", "in flight", "in progress", "in use", "being processed", "concurrent"},
		func(phrase string) bool { return strings.Contains(text, phrase) })
}

func statusClass(status int) string {
	if status >= 300 && status <= 399 {
		return "redirect"
	}
	return fmt.Sprintf("http_%d", status)
}

func isReplay(header http.Header) bool {
	return strings.EqualFold(header.Get("Idempotency-Replay"), "true") ||
		strings.EqualFold(header.Get("Idempotent-Replayed"), "true")
}

func (p *provider) captured(header http.Header) map[string]string {
	var captured map[string]string
	for _, name := range p.capture {
		if values := header.Values(name); len(values) > 0 {
			if captured == nil {
				captured = make(map[string]string, len(p.capture))
			}
			captured[name] = storableText(strings.Join(values, ", "))
		}
	}
	return captured
}

// find looks for the provider's reference. An effect without one is still an
// effect, so nothing that goes wrong here matters.
func (t *tool) find(ctx context.Context, body []byte) string {
	if t.reference == nil {
		return ""
	}
	input, err := decodeExact(body)
	if err != nil {
		return ""
	}
	value, err := t.reference.eval(ctx, input)
	if err != nil {
		return ""
	}
	text, err := scalar(value)
	if err != nil {
		return ""
	}
	characters := []rune(storableText(text))
	return string(characters[:min(len(characters), maxReference)])
}
