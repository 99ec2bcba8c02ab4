// Package jq evaluates the expressions that a configuration holds, bounded in
// time and size and with numbers kept exact. The same input gives the same result on
// every day and every machine: there is no clock, no environment and no file.
package jq

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/itchyny/gojq"
)

// Expression is a compiled jq expression with exactly one result.
type Expression struct {
	source string
	query  *gojq.Query
	code   *gojq.Code
	names  []string // if it is nothing but these
	place  chan struct{}
}

// Compile refuses what reads the clock or the time zone: a retry must send
// what the first attempt sent, and the same response must mean the same. Its
// errors give a position and no text.
func Compile(source string) (*Expression, error) {
	query, err := gojq.Parse(source)
	var position *gojq.ParseError
	switch {
	case errors.As(err, &position):
		return nil, fmt.Errorf("jq does not parse at offset %d", position.Offset)
	case err != nil:
		return nil, errors.New("jq does not parse")
	}
	if name := findCall(reflect.ValueOf(query), "now", "localtime", "strflocaltime"); name != "" {
		return nil, fmt.Errorf("jq calls %s: its result would depend on the clock", name)
	}
	limited, err := gojq.Parse(source)
	if err != nil {
		return nil, errors.New("jq does not parse")
	}
	if err := bound(limited); err != nil {
		return nil, err
	}
	code, err := gojq.Compile(limited, boundedOptions()...)
	if err != nil {
		return nil, fmt.Errorf("compiling jq: %w", err)
	}
	return &Expression{source, query, code, names(query), heavy}, nil
}

// Apart has the expression wait for no request and no answer where it needs much. All
// expressions that are apart wait for each other.
func (e *Expression) Apart() *Expression {
	e.place = heavyApart
	return e
}

var errOneResult = errors.New("jq gave no result, or more than one")

// Eval runs the expression for a second at most, for 8 MiB at most. It builds 32 MiB at
// most on the way, and an expression that needs much waits until no other such runs. The
// input must not be shared with a concurrent evaluation. An error may quote from the input.
func (e *Expression) Eval(ctx context.Context, input any) (any, error) {
	if text, found := textAt(e.names, input); found && measure(text, resultLimit) >= 0 {
		return text, nil
	}
	b := &budget{Context: ctx, deadline: time.Now().Add(evaluationLimit), place: e.place}
	defer b.release()
	results := e.code.RunWithContext(b, input, b)
	value, ok := results.Next()
	if err, failed := value.(error); failed {
		return nil, fmt.Errorf("evaluating jq: %w", err)
	}
	if ok {
		_, more := results.Next()
		ok = !more
	}
	switch {
	case b.err != nil:
		return nil, fmt.Errorf("evaluating jq: %w", b.err)
	case !ok:
		return nil, errOneResult
	}
	if measure(value, resultLimit) < 0 {
		return nil, ErrTooLarge
	}
	return value, nil
}

// findCall returns the first of the names that the syntax tree calls.
func findCall(node reflect.Value, names ...string) string {
	switch node.Kind() {
	case reflect.Pointer:
		if node.IsNil() {
			return ""
		}
		if call, ok := node.Interface().(*gojq.Func); ok && slices.Contains(names, call.Name) {
			return call.Name
		}
		return findCall(node.Elem(), names...)
	case reflect.Struct:
		for i := range node.NumField() {
			if name := findCall(node.Field(i), names...); name != "" {
				return name
			}
		}
	case reflect.Slice:
		for i := range node.Len() {
			if name := findCall(node.Index(i), names...); name != "" {
				return name
			}
		}
	}
	return ""
}
