// Package render makes the parts of a message from an intent, with the jq expressions and templates of a tool.
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

// Piece is literal text, or one placeholder.
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

// parsePlaceholder finds the brace that closes the placeholder. A jq expression may contain braces, so it is the
// first brace that has a complete expression before it.
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

// HasValue reports whether any part depends on the intent.
func (t Template) HasValue() bool {
	return slices.ContainsFunc(t, func(piece Piece) bool { return piece.Value != nil })
}

// Expression compiles an optional setting. It returns nil for "". field is the setting's name for the error.
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

// Find returns the value of an expression as text. It returns "" if there is no expression, if it fails, or if its
// value is not a scalar.
func Find(ctx context.Context, expression *jq.Expression, input any) string {
	if expression == nil {
		return ""
	}
	value, err := expression.Eval(ctx, input)
	if err != nil {
		return ""
	}
	text, _ := Scalar(value) // Scalar returns "" with an error
	return text
}

// AsIs escapes nothing.
func AsIs(text string) (string, error) { return text, nil }

// Scalar writes a value as text. It returns an error for null, an array or an object.
func Scalar(value any) (string, error) {
	switch value := value.(type) {
	case string:
		return value, nil
	case nil, []any, map[string]any:
		return "", errors.New("jq gave null, an array or an object where text belongs")
	}
	return string(jq.Encode(value)), nil
}

// Input returns the input of every expression of a tool: {payload, key, provider_ref, agent_run_id, step_id,
// tool_name, business_scope}. It belongs to one dispatch and must not be shared with another.
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

// TraceContext returns only the W3C trace headers (https://www.w3.org/TR/trace-context,
// https://www.w3.org/TR/baggage) of the headers that the agent stored with the intent. Names are in lower case. If a
// name has several spellings, the lower-case one counts, on every attempt. A value with a control character is
// dropped.
func TraceContext(from map[string]string) map[string]string {
	if len(from) == 0 { // most intents have none, and sorting would cost more
		return nil
	}
	kept := map[string]string{}
	for _, written := range slices.Sorted(maps.Keys(from)) { // the lower-case spelling sorts last and so overwrites the others
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

// fault says which setting could not be rendered for an intent, and why. It contains names of settings and fields,
// and types of values, but no value.
type fault struct {
	setting    string // map, path, headers.X-Case
	expression string // "" if it is too long to repeat, or there is none
	reason     string
	types      string // the types of the fields that the expression read
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

// Mistyped returns the error of an expression whose value is not text where text is needed.
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

// In adds the setting to an error of [Template.Render]. It hides the text of any other error, which may quote a
// value.
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

// Because is [In] for an error of the adapter itself, whose text quotes no value.
func Because(setting string, err error) error {
	return fmt.Errorf("%w: %w", &fault{setting: setting, reason: err.Error()}, err)
}

// Refusal returns the result for a payload that a tool's expressions cannot render. A retry would fail in the same
// way, unless the time was too short: the dispatch's or an expression's, which also runs out while the process is
// suspended.
func Refusal(ctx context.Context, err error) dispatch.Result {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: evidence.Context(ctx), Unsent: true}
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "slow_expression", Unsent: true, Healthy: true, Problem: Problem(err)}
	}
	return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: dispatch.Unrenderable, Unsent: true, Problem: Problem(err)}
}

// Problem says why no request could be made of an intent, without any value. It returns nil for an error that does
// not come from this package.
func Problem(err error) *dispatch.Problem {
	var known *fault
	if !errors.As(err, &known) {
		return nil
	}
	title := strings.TrimSpace(known.setting + " cannot be rendered")
	return &dispatch.Problem{Title: title, Detail: known.Error()}
}
