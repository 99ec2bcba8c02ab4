// Package adapter holds code that adapters share: reading the blocks of their configuration, bounding the time of a
// dispatch, and writing an intent as the headers and the body of a broker's message.
package adapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/internal/jq"
)

// Decode reads a block. If block is nil, the defaults remain.
func Decode(block dispatch.Block, into any) error {
	if block == nil {
		return nil
	}
	return block.Decode(into)
}

// Tools reads the tools in the order of their names. It returns the problem of each as a [dispatch.ToolError],
// joined.
func Tools[T any](specs map[string]dispatch.ToolSpec, read func(operation string, spec dispatch.ToolSpec) (T, error)) (map[string]T, error) {
	tools := make(map[string]T, len(specs))
	var problems []error
	for _, operation := range slices.Sorted(maps.Keys(specs)) {
		tool, err := read(operation, specs[operation])
		if err != nil {
			problems = append(problems, &dispatch.ToolError{Operation: operation, Err: err})
		}
		tools[operation] = tool
	}
	return tools, errors.Join(problems...)
}

// Within ends the context after limit at the latest; zero means no limit. It returns a context with an earlier
// deadline unchanged.
func Within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if end, has := ctx.Deadline(); limit <= 0 || has && time.Until(end) <= limit {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// Form defines how a tool writes its messages.
type Form struct {
	names   []string // the names of the headers, in order
	headers map[string]render.Template
	mapping *jq.Expression // nil to send the payload as it is
}

// Message is the message of one intent.
type Message struct {
	Headers []Header
	Body    []byte // nil if the mapping gave null
}

// Header is one header. No name occurs twice in a message.
type Header struct{ Name, Value string }

// CompileForm checks the headers and the mapping of a tool. The configuration must not set the names in reserved,
// nor those of the trace context.
func CompileForm(headers map[string]string, mapping string, reserved ...string) (*Form, error) {
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

// Write makes the message. It is the same for every attempt of the intent. input is the result of [render.Input] for
// the request.
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
			return nil, render.In("headers."+name, err)
		}
		headers = append(headers, Header{name, value})
	}
	return headers, nil
}

// writeBody forwards the payload byte for byte unless it is mapped.
func (f *Form) writeBody(ctx context.Context, request dispatch.Request, input map[string]any) ([]byte, error) {
	if f.mapping == nil {
		return request.Payload, nil
	}
	value, err := render.Value(ctx, "map", f.mapping, input)
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

// isToken reports whether the name is a token of RFC 9110, which every broker accepts as a name.
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
