package render

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/internal/jq"
)

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
	reason, kind := jq.Blame(err)
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
