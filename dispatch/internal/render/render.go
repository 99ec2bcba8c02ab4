// Package render turns an intent into the parts of a message, by the jq
// expressions and templates of a tool.
package render

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/internal/jq"
)

// Template is text with jq placeholders: /v1/charges/{.payload.id}.
type Template []Piece

// Piece is a stretch of text, or one placeholder.
type Piece struct {
	Literal string
	Value   *jq.Expression // nil for a literal
}

// ParseTemplate reads {jq} as a placeholder, {{ and }} as braces.
func ParseTemplate(text string) (Template, error) {
	var parsed Template
	var literal strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case strings.HasPrefix(text[i:], "{{"), strings.HasPrefix(text[i:], "}}"):
			literal.WriteByte(text[i])
			i++
		case text[i] == '}':
			return nil, fmt.Errorf("a } at offset %d closes nothing; write }} for a brace", i)
		case text[i] == '{':
			value, length, err := parsePlaceholder(text[i+1:])
			if err != nil {
				return nil, fmt.Errorf("placeholder at offset %d: %w", i, err)
			}
			parsed = append(parsed, Piece{Literal: literal.String()}, Piece{Value: value})
			literal.Reset()
			i += length
		default:
			literal.WriteByte(text[i])
		}
	}
	return append(parsed, Piece{Literal: literal.String()}), nil
}

// parsePlaceholder finds the brace that closes the placeholder: the first one
// before which there stands a whole expression, since jq has braces itself.
func parsePlaceholder(text string) (value *jq.Expression, length int, err error) {
	err = errors.New("no } closes it")
	for end := range len(text) {
		if text[end] != '}' {
			continue
		}
		if value, err = jq.Compile(text[:end]); err == nil {
			return value, end + 1, nil
		}
	}
	return nil, 0, err
}

// Render fills in the values, each passed through escape.
func (t Template) Render(ctx context.Context, input any, escape func(string) (string, error)) (string, error) {
	var text strings.Builder
	for _, piece := range t {
		if piece.Value == nil {
			text.WriteString(piece.Literal)
			continue
		}
		value, err := piece.Value.Eval(ctx, input)
		if err != nil {
			return "", failed(piece.Value, input, err)
		}
		plain, err := Scalar(value)
		if err != nil {
			return "", Mistyped(piece.Value, input, value)
		}
		escaped, err := escape(plain)
		if err != nil {
			return "", fmt.Errorf("%w: %w", &fault{expression: piece.Value.Source(), reason: err.Error()}, err)
		}
		text.WriteString(escaped)
	}
	return text.String(), nil
}

// HasValue reports whether any of it depends on the intent.
func (t Template) HasValue() bool {
	return slices.ContainsFunc(t, func(piece Piece) bool { return piece.Value != nil })
}

// Expression compiles a setting that may be left out: "" gives nil. field names
// it in the error.
func Expression(field, source string) (*jq.Expression, error) {
	if source == "" {
		return nil, nil
	}
	compiled, err := jq.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return compiled, nil
}

// Find is the value of an expression as text, and "" where there is no
// expression, where it fails, or where its value is no text.
func Find(ctx context.Context, expression *jq.Expression, input any) string {
	if expression == nil {
		return ""
	}
	value, err := expression.Eval(ctx, input)
	if err != nil {
		return ""
	}
	text, _ := Scalar(value) // "" with an error
	return text
}

// AsIs escapes nothing.
func AsIs(text string) (string, error) { return text, nil }

// Scalar writes a value as text, for the places that hold only text.
func Scalar(value any) (string, error) {
	switch value := value.(type) {
	case string:
		return value, nil
	case nil, []any, map[string]any:
		return "", errors.New("jq gave null, an array or an object where text belongs")
	}
	return string(jq.Encode(value)), nil
}

// Input is the input of every expression of a tool: {payload, key, provider_ref,
// agent_run_id, step_id, tool_name, business_scope}. It belongs to one
// dispatch and must not be shared with another.
func Input(request dispatch.Request) (map[string]any, error) {
	var payload any
	if len(request.Payload) > 0 {
		decoded, err := jq.Decode(request.Payload)
		if errors.Is(err, jq.ErrLongNumber) {
			return nil, Because("payload", err)
		}
		if err != nil {
			return nil, In("payload", err)
		}
		payload = decoded
	}
	var reference any
	if request.ProviderRef != "" {
		reference = request.ProviderRef
	}
	return map[string]any{
		"payload":        payload,
		"key":            request.IdempotencyKey,
		"provider_ref":   reference,
		"agent_run_id":   request.Tuple.AgentRunID,
		"step_id":        request.Tuple.StepID,
		"tool_name":      request.Tuple.ToolName,
		"business_scope": request.Tuple.BusinessScope,
	}, nil
}

// TraceContext takes the W3C trace headers (https://www.w3.org/TR/trace-context,
// https://www.w3.org/TR/baggage), and nothing else, from what the agent left
// with the intent. Names are in lower case, and of several spellings the
// standard's own counts, on every attempt alike; values hold no control characters.
func TraceContext(from map[string]string) map[string]string {
	if len(from) == 0 { // sorting nothing takes longer than that
		return nil
	}
	kept := map[string]string{}
	for _, written := range slices.Sorted(maps.Keys(from)) { // in which lower case is the last
		switch name := strings.ToLower(written); name {
		case "traceparent", "tracestate", "baggage":
			if value := from[written]; !strings.ContainsFunc(value, isControl) {
				kept[name] = value
			}
		}
	}
	return kept
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// fault says which setting of a tool made no request of an intent, and why. It has names
// of settings and fields, and types of values, but no value.
type fault struct {
	setting    string // map, path, headers.X-Case
	expression string // "" where it is too long to be repeated, or there is none
	reason     string
	types      string // of what the expression read
}

func (f *fault) Error() string {
	text := f.reason
	if f.expression != "" {
		text = f.expression + ": " + text
	}
	if f.types != "" {
		text += "; " + f.types
	}
	return text
}

func failed(expression *jq.Expression, input any, err error) error {
	reason, kind := jq.Reason(err)
	return fmt.Errorf("%w: %w", &fault{expression: expression.Source(), reason: reason, types: expression.Types(input, kind)}, err)
}

// Mistyped is the error of an expression that gave no text where text belongs.
func Mistyped(expression *jq.Expression, input, value any) error {
	kind := jq.TypeOf(value)
	return &fault{expression: expression.Source(), reason: "gives " + kind + " where text belongs", types: expression.Types(input, kind)}
}

// Value evaluates the expression of a setting.
func Value(ctx context.Context, setting string, expression *jq.Expression, input any) (any, error) {
	value, err := expression.Eval(ctx, input)
	if err != nil {
		return nil, In(setting, failed(expression, input, err))
	}
	return value, nil
}

// In names the setting that an error of [Template.Render] is about. Of another error it
// keeps no word: that may quote a value.
func In(setting string, err error) error {
	if err == nil {
		return nil
	}
	var known *fault
	if errors.As(err, &known) {
		known.setting = setting
		return err
	}
	return fmt.Errorf("%w: %w", &fault{setting: setting, reason: "it cannot be read"}, err)
}

// Because is In for an error of the adapter's own that quotes nothing.
func Because(setting string, err error) error {
	return fmt.Errorf("%w: %w", &fault{setting: setting, reason: err.Error()}, err)
}

// Refusal is the result of a payload that a tool's expressions do not take.
// Asking again would end the same, unless it was time that ran out: that of
// the dispatch, or of an expression, for which a process that was suspended
// has as little.
func Refusal(ctx context.Context, err error) dispatch.Result {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: evidence.Context(ctx), Unsent: true}
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "slow_expression", Unsent: true, Healthy: true, Problem: Problem(err)}
	}
	return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: dispatch.Unrenderable, Unsent: true, Problem: Problem(err)}
}

// Problem says why no request was made of an intent, as far as no value is repeated for
// it; nil if nothing is left.
func Problem(err error) *dispatch.Problem {
	var known *fault
	if !errors.As(err, &known) {
		return nil
	}
	title := strings.TrimSpace(known.setting + " cannot be rendered")
	return &dispatch.Problem{Title: title, Detail: known.Error()}
}
