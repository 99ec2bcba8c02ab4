package http

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/dispatch/internal/rules"
	"github.com/agentoutbox/drainer/internal/jq"
)

// judge reads a response and returns the outcome that it proves.
func (t *tool) judge(ctx context.Context, response *http.Response) dispatch.Result {
	a := read(ctx, response, t.provider.limit)
	v := t.verdict(ctx, a)
	result := dispatch.Result{
		Outcome:         v.Outcome,
		Final:           v.Final,
		HTTPStatus:      a.status,
		ErrorClass:      v.Class,
		Replayed:        t.provider.isReplay(a.header),
		Response:        evidence.JSON(a.body, a.header.Get("Content-Type")),
		ResponseHeaders: t.provider.captured(a.header),
	}
	if v.Outcome == dispatch.Completed {
		t.reading.Refer(ctx, &result, a.json())
		return result
	}
	details := problemDetails(a)
	result.Problem = details.problem()
	result.RetryAfter = max(v.RetryAfter, evidence.RetryAfter(a.header, a.readAt), details.retryAfter())
	return result
}

func (p *provider) captured(header http.Header) map[string]string {
	var captured map[string]string
	for _, name := range p.capture {
		if values := header.Values(name); len(values) > 0 {
			if captured == nil {
				captured = make(map[string]string, len(p.capture))
			}
			captured[name] = evidence.Text(strings.Join(values, ", "))
		}
	}
	return captured
}

// verdict applies the operator's rules first, then the provider's profile, then the meaning of the status.
func (t *tool) verdict(ctx context.Context, a *answer) rules.Verdict {
	v, known := a.ruled(ctx, t.reading.Rules)
	if !known {
		if v, known = a.ruled(ctx, t.provider.rules); !known {
			v = byStatus(a)
		}
		v = t.provider.advised(v, a)
	}
	// If a server stored its failure with the key, the failure does not show whether the effect happened, and every
	// retry would get it again. A provider that asks for a retry all the same is believed.
	if a.status >= 500 && t.provider.isReplay(a.header) && !says(a.header, t.provider.shouldRetry, "true") {
		return beyondRetry(v)
	}
	return v
}

// answer is a response with as much of its body as could be read.
type answer struct {
	status int
	header http.Header
	readAt time.Time // by this process's clock

	body       []byte // nil if it was not read or is blank
	unreliable string // why the body proves nothing, as an error class; "" for a reliable body

	decoded bool
	value   any
}

var errBodyTooLarge = errors.New("response body is over max_response_body")

func read(ctx context.Context, response *http.Response, limit int64) *answer {
	a := &answer{status: response.StatusCode, header: response.Header, readAt: time.Now()}
	body, err := readBody(response.Body, limit)
	switch {
	case errors.Is(err, errBodyTooLarge):
		a.unreliable = "body_too_large"
	case err != nil:
		if a.unreliable = evidence.Sent(ctx, err); a.unreliable == "protocol" {
			a.unreliable = "malformed_body"
		}
	default:
		a.body = body
		// Many providers send no body with a success, although they declare a content type.
		if len(body) > 0 && evidence.DeclaresJSON(a.header.Get("Content-Type")) && !json.Valid(body) {
			a.unreliable = "malformed_body"
		}
	}
	return a
}

// readBody reads at most limit bytes, counted after decompression. It removes a byte order mark, which some
// frameworks write before JSON, and returns nil for a blank body.
func readBody(body io.Reader, limit int64) ([]byte, error) {
	read, err := io.ReadAll(io.LimitReader(body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the response body: %w", err)
	case int64(len(read)) > limit:
		return nil, errBodyTooLarge
	}
	read = bytes.TrimPrefix(read, []byte("\ufeff"))
	if len(bytes.TrimSpace(read)) == 0 {
		return nil, nil
	}
	return read, nil
}

// json returns the body as a JSON value, or nil if it is not JSON.
func (a *answer) json() any {
	if !a.decoded && len(a.body) > 0 {
		a.value, _ = jq.Decode(a.body)
		a.decoded = true
	}
	return a.value
}

// bareAnswers have no header and no body.
var bareAnswers = []rules.Answer{&answer{status: 200}, &answer{status: 404}, &answer{status: 500}}

// ruled applies rules. Rules need the body, so an unreliable body leaves the outcome in doubt.
func (a *answer) ruled(ctx context.Context, by rules.Rules) (v rules.Verdict, known bool) {
	if len(by) > 0 && a.unreliable != "" {
		return rules.Doubt(a.unreliable), true
	}
	return by.Judge(ctx, a)
}

// View implements [rules.Answer].
func (a *answer) View() map[string]any {
	headers := make(map[string]any, len(a.header))
	for name, values := range a.header {
		headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	return map[string]any{
		"status":  a.status,
		"headers": headers,
		"body":    a.json(),
		"date":    int(evidence.DateOf(a.header, a.readAt).Unix()),
	}
}

// Class implements [rules.Answer].
func (a *answer) Class() string {
	if a.status >= 300 && a.status <= 399 && !leadsToResult(a.status) {
		return "redirect"
	}
	return fmt.Sprintf("http_%d", a.status)
}

// CanProve implements [rules.Answer]. A 5xx does not prove an effect. Only a 404, a 410 or a 2xx with JSON can prove
// absence.
func (a *answer) CanProve(outcome dispatch.Outcome) bool {
	switch outcome {
	case dispatch.Completed:
		return a.status >= 200 && a.status <= 499
	case dispatch.Absent:
		found := a.status >= 200 && a.status <= 299
		return a.status == 404 || a.status == 410 || (found && a.json() != nil)
	}
	return true
}

// byStatus returns the verdict of the status, for a response that no rule matches.
func byStatus(a *answer) rules.Verdict {
	switch outcome := outcomeOf(a); {
	case outcome != dispatch.Completed:
		return rules.Verdict{Outcome: outcome, Class: a.Class()}
	case a.unreliable != "":
		return rules.Doubt(a.unreliable)
	}
	return rules.Verdict{Outcome: dispatch.Completed}
}

// leadsToResult reports whether a redirect may follow an effect. A 303 does (RFC 9110, 15.4.4). After a 301 or 302,
// too, clients continue with a GET, so such a server may have acted. Only a 307 or 308 asks for the same request at
// another address.
func leadsToResult(status int) bool {
	return status >= http.StatusMovedPermanently && status <= http.StatusSeeOther
}

func outcomeOf(a *answer) dispatch.Outcome {
	switch status := a.status; {
	case status >= 200 && status <= 299:
		return dispatch.Completed
	case status == http.StatusUnauthorized:
		return dispatch.CredentialsRefused
	case status == http.StatusForbidden:
		return dispatch.Forbidden
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable, status == 529: // 529: overloaded
		return dispatch.Throttled
	case status == http.StatusTooEarly:
		return dispatch.InFlight
	case status == http.StatusConflict && saysInFlight(a):
		return dispatch.InFlight
	case status == http.StatusRequestTimeout, leadsToResult(status):
		return dispatch.Ambiguous
	case status >= 300 && status <= 499:
		return dispatch.Rejected
	}
	return dispatch.Ambiguous
}

// saysInFlight distinguishes the two meanings of 409: the provider still works on a request with this key, or it
// refuses. Only the first is worth another attempt. Providers show it with a Retry-After or in their problem details
// (RFC 9457). A 409 without either is a refusal: on a first attempt no request of ours is in flight, and after an
// attempt in doubt a refusal does not end the doubt.
func saysInFlight(a *answer) bool {
	if a.header.Get("Retry-After") != "" {
		return true
	}
	details := problemDetails(a)
	words := strings.ToLower(strings.Join([]string{
		details.text("type"), details.text("title"), details.text("detail"), details.text("code"),
	}, " "))
	words = strings.NewReplacer("-", " ", "_", " ").Replace(words)
	return slices.ContainsFunc([]string{"outstanding", "in flight", "in progress", "in use", "being processed", "concurrent"},
		func(phrase string) bool { return strings.Contains(words, phrase) })
}

func (p *provider) isReplay(header http.Header) bool {
	return slices.ContainsFunc(p.replay, func(name string) bool { return says(header, name, "true") })
}

// advised applies the provider's advice about another attempt. The advice moves a verdict towards doubt, with one
// exception: a provider that limits the rate and wants no retry has refused, without an effect.
func (p *provider) advised(v rules.Verdict, a *answer) rules.Verdict {
	switch {
	case says(a.header, p.shouldRetry, "true"):
		if (v.Outcome == dispatch.Rejected || v.Outcome.RefusesUs()) && a.status >= 400 {
			v.Outcome = dispatch.InFlight
		}
	case says(a.header, p.shouldRetry, "false"):
		if v.Outcome == dispatch.Throttled && a.status < 500 {
			v.Outcome = dispatch.Rejected
		}
		return beyondRetry(v)
	}
	return v
}

// beyondRetry makes a verdict final that would lead to a retry. After "not now" or "still busy", without another
// attempt, the outcome stays unknown.
func beyondRetry(v rules.Verdict) rules.Verdict {
	switch v.Outcome {
	case dispatch.Throttled, dispatch.InFlight, dispatch.Ambiguous:
		v.Outcome, v.Final = dispatch.Ambiguous, true
	}
	return v
}

func says(header http.Header, name, word string) bool {
	return name != "" && strings.EqualFold(strings.TrimSpace(header.Get(name)), word)
}

// details are the members of a Problem Details object (RFC 9457). It is nil if the response has none. A member of
// the wrong type counts as missing, as the RFC demands.
type details map[string]any

func problemDetails(a *answer) details {
	media, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if err != nil || media != "application/problem+json" {
		return nil
	}
	object, _ := a.json().(map[string]any)
	return object
}

func (d details) text(member string) string {
	text, _ := d[member].(string)
	return text
}

// retryAfter reads retry_after, which RFC 9457 does not define. Cloudflare sends it for any API that it protects.
func (d details) retryAfter() time.Duration {
	number, _ := d["retry_after"].(json.Number)
	wait, _ := evidence.Seconds(number.String())
	return wait
}

// problem returns the type, title and detail, or nil if all are empty.
func (d details) problem() *dispatch.Problem {
	kept := dispatch.Problem{
		Type:   evidence.Text(d.text("type")),
		Title:  evidence.Text(d.text("title")),
		Detail: evidence.Text(d.text("detail")),
	}
	if kept == (dispatch.Problem{}) {
		return nil
	}
	return &kept
}
