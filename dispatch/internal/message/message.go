// Package message writes an intent as what brokers carry: headers and a body.
package message

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/internal/jq"
)

// Form is how a tool writes its messages.
type Form struct {
	names   []string // of the headers, in order
	headers map[string]render.Template
	mapping *jq.Expression // nil sends the payload as it is
}

// Message is one intent, written.
type Message struct {
	Headers []Header
	Body    []byte // nil where the mapping gave null
}

// Header is one header; no name comes twice.
type Header struct{ Name, Value string }

// Compile checks the headers and the mapping of a tool. Names in reserved, and
// those of the trace context, are not the configuration's to give.
func Compile(headers map[string]string, mapping string, reserved ...string) (*Form, error) {
	form := &Form{names: slices.Sorted(maps.Keys(headers)), headers: make(map[string]render.Template, len(headers))}
	var problems []error
	for _, name := range form.names {
		template, err := compileHeader(name, headers[name], append(reserved, "traceparent", "tracestate", "baggage"))
		problems = append(problems, err)
		form.headers[name] = template
	}
	if mapping != "" {
		compiled, err := jq.Compile(mapping)
		if err != nil {
			problems = append(problems, fmt.Errorf("map: %w", err))
		}
		form.mapping = compiled
	}
	return form, errors.Join(problems...)
}

func compileHeader(name, text string, reserved []string) (render.Template, error) {
	if !isToken(name) {
		return nil, errors.New("headers: a name is not a valid header name")
	}
	if slices.ContainsFunc(reserved, func(taken string) bool { return strings.EqualFold(taken, name) }) {
		return nil, fmt.Errorf("headers: %s is set by the adapter itself", name)
	}
	template, err := render.ParseTemplate(text)
	if err != nil {
		return nil, fmt.Errorf("headers.%s: %w", name, err)
	}
	return template, nil
}

// Write makes the message that every attempt of the intent sends alike. input
// is what [render.Input] made of the request.
func (f *Form) Write(ctx context.Context, request dispatch.Request, input map[string]any) (Message, error) {
	headers, err := f.writeHeaders(ctx, request, input)
	if err != nil {
		return Message{}, err
	}
	body, err := f.writeBody(ctx, request, input)
	if err != nil {
		return Message{}, err
	}
	return Message{Headers: headers, Body: body}, nil
}

func (f *Form) writeHeaders(ctx context.Context, request dispatch.Request, input map[string]any) ([]Header, error) {
	headers := make([]Header, 0, len(f.names)+1)
	trace := render.TraceContext(request.Headers)
	for _, name := range slices.Sorted(maps.Keys(trace)) {
		headers = append(headers, Header{name, trace[name]})
	}
	for _, name := range f.names {
		value, err := f.headers[name].Render(ctx, input, withoutControls)
		if err != nil {
			return nil, err
		}
		headers = append(headers, Header{name, value})
	}
	return headers, nil
}

// writeBody forwards the payload octet for octet unless it is mapped.
func (f *Form) writeBody(ctx context.Context, request dispatch.Request, input map[string]any) ([]byte, error) {
	if f.mapping == nil {
		return request.Payload, nil
	}
	value, err := f.mapping.Eval(ctx, input)
	if err != nil || value == nil {
		return nil, err
	}
	return jq.Encode(value), nil
}

func withoutControls(text string) (string, error) {
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", errors.New("a header value holds a control character")
	}
	return text, nil
}

// isToken asks for the token of RFC 9110, which every broker takes as a name.
func isToken(name string) bool {
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return name != ""
}
