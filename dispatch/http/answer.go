package http

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch/internal/retryafter"
	"github.com/agentoutbox/drainer/internal/jq"
)

// answer is a response, read as far as it could be.
type answer struct {
	status int
	header http.Header
	readAt time.Time // by this process's clock

	body       []byte // nil where unread
	unreliable string // why the body proves nothing, as an error class; "" for a good one

	decoded bool
	value   any
}

func read(ctx context.Context, response *http.Response, limit int64) *answer {
	a := &answer{status: response.StatusCode, header: response.Header, readAt: time.Now()}
	body, err := readBody(response.Body, limit)
	if err != nil {
		a.unreliable = bodyClass(ctx, err)
		return a
	}
	a.body = body
	if isMalformed(body, a.contentType()) {
		a.unreliable = "malformed_body"
	}
	return a
}

// date is when the provider answered, by its own clock if it told.
func (a *answer) date() time.Time { return retryafter.DateOf(a.header, a.readAt) }

func (a *answer) contentType() string { return a.header.Get("Content-Type") }

// json is the body as a JSON value, nil where it is none.
func (a *answer) json() any {
	if !a.decoded && len(a.body) > 0 {
		a.value, _ = jq.Decode(a.body)
	}
	a.decoded = true
	return a.value
}

// view is what a rule sees.
func (a *answer) view() map[string]any {
	headers := make(map[string]any, len(a.header))
	for name, values := range a.header {
		headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	return map[string]any{
		"status":  a.status,
		"headers": headers,
		"body":    a.json(),
		"date":    int(a.date().Unix()),
	}
}
