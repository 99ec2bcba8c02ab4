// Package jq evaluates the expressions of a configuration, bounded in time and size and with exact numbers. The
// same input gives the same result on every day and every machine: expressions cannot read a clock, the
// environment or a file.
package jq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/itchyny/gojq"
)

// Expression is a compiled jq expression with exactly one result.
type Expression struct {
	source string
	query  *gojq.Query
	code   *gojq.Code
	names  []string // the path of an expression that is only .one.other; else nil
	place  chan struct{}
}

// Compile refuses expressions that read the clock or the time zone: a retry must send the same request as the
// first attempt, and a response must always have the same meaning. Its errors give a position and no text.
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

// InOwnQueue makes a heavy evaluation wait only for others of such expressions, and not for those of requests and
// responses.
func (e *Expression) InOwnQueue() *Expression {
	e.place = heavyApart
	return e
}

var errOneResult = errors.New("jq gave no result, or more than one")

// Eval runs the expression for a second at most. The result may have 8 MiB, and the evaluation may build 32 MiB in
// all. A heavy evaluation waits until no other heavy one runs. The input must not be shared with a concurrent
// evaluation. An error may quote the input.
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

// findCall returns the first of the names that the syntax tree calls, or "".
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

const (
	maxSource = 200 // the longest expression, in bytes, that messages repeat
	maxTypes  = 3
)

// Source returns the source of the expression, or "" if it is too long. A part of it could contain a part of a
// secret, which would not be recognised.
func (e *Expression) Source() string {
	if len(e.source) > maxSource {
		return ""
	}
	return e.source
}

// Types names the JSON types of the fields that the expression reads: ".payload.amount is a string". It finds only
// fields on a plain path of objects. Fields of the type toBlame come first, and at most maxTypes are named. The
// text never contains a value.
func (e *Expression) Types(input any, toBlame string) string {
	var found reads
	found.query(e.query)
	var blamed, others []string
	for _, names := range found {
		kind, length := TypeOf(input), 0
		for value := input; length < len(names); length++ {
			object, isObject := value.(map[string]any)
			if !isObject {
				break
			}
			value = object[names[length]]
			kind = TypeOf(value)
		}
		text := "." + strings.Join(names[:length], ".") + " is " + kind
		switch {
		case slices.Contains(blamed, text) || slices.Contains(others, text):
		case kind == toBlame:
			blamed = append(blamed, text)
		default:
			others = append(others, text)
		}
	}
	all := append(blamed, others...)
	return strings.Join(all[:min(len(all), maxTypes)], ", ")
}

// TypeOf returns the JSON type of a value, with its article.
func TypeOf(value any) string {
	switch value.(type) {
	case bool:
		return "a boolean"
	case int, float64, *big.Int, json.Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "an array"
	case map[string]any:
		return "an object"
	}
	return "null"
}

// The evaluator's errors name an operation and a type before they quote a value. Only operation and type are taken
// from them.
var (
	refusedType  = regexp.MustCompile(`^(@?[a-z_][a-z_0-9]*)(?:\(.*\))? cannot be applied to: (null|boolean|number|string|array|object)\b`)
	refusedValue = regexp.MustCompile(`^(@?[a-z_][a-z_0-9]*)(?:\(.*\))? cannot be applied to `)
	refusedUse   = regexp.MustCompile(`^cannot ([a-z ]+): (null|boolean|number|string|array|object)\b`)
	otherWanted  = regexp.MustCompile(`^(expected an? [a-z ]+) but got: (null|boolean|number|string|array|object)\b`)
)

var articles = map[string]string{
	"null": "null", "boolean": "a boolean", "number": "a number", "string": "a string", "array": "an array", "object": "an object",
}

// Reason returns why an evaluation failed, and the type at which it failed if that is known. It repeats nothing of
// the input.
func Reason(err error) (reason, kind string) {
	for _, known := range []error{ErrBuildsTooMuch, ErrTooManySteps, ErrTooLarge, errOneResult} {
		if errors.Is(err, known) {
			return known.Error(), ""
		}
	}
	var thrown gojq.ValueError
	if errors.As(err, &thrown) {
		return "it calls error", ""
	}
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	text := err.Error()
	if found := refusedType.FindStringSubmatch(text); found != nil {
		return found[1] + " does not take " + articles[found[2]], articles[found[2]]
	}
	if found := refusedUse.FindStringSubmatch(text); found != nil {
		return "cannot " + found[1] + " " + articles[found[2]], articles[found[2]]
	}
	if found := otherWanted.FindStringSubmatch(text); found != nil {
		return found[1] + " but got " + articles[found[2]], articles[found[2]]
	}
	if found := refusedValue.FindStringSubmatch(text); found != nil {
		return found[1] + " does not take this value", ""
	}
	return "it fails", ""
}

// names returns the path of an expression that is only .one.other, as most are that find a reference. It returns
// nil for others.
func names(query *gojq.Query) []string {
	if query.Term == nil || query.Term.Type != gojq.TermTypeIndex || len(query.FuncDefs) > 0 {
		return nil
	}
	found := []string{query.Term.Index.Name}
	for _, suffix := range query.Term.SuffixList {
		if suffix.Index == nil {
			return nil
		}
		found = append(found, suffix.Index.Name)
	}
	for _, name := range found {
		if name == "" {
			return nil
		}
	}
	return found
}

// textAt follows the names to a string, without the evaluator and its deadline. If there is no string, the
// evaluator decides.
func textAt(names []string, input any) (text string, found bool) {
	for _, name := range names {
		object, is := input.(map[string]any)
		if !is {
			return "", false
		}
		input = object[name]
	}
	text, found = input.(string)
	return text, found && len(names) > 0
}

// resultLimit bounds the result of an expression: the bytes of its strings and numbers, and overhead for each
// value. A small payload can be made into a result of any size.
const resultLimit = 8 << 20

const overhead = 16 // about the size of a value in bytes, without its text

// ErrTooLarge says that a result is larger than any request may be.
var ErrTooLarge = errors.New("jq gave more than 8 MiB")

// measure subtracts the size of a value from left, and stops below 0.
func measure(value any, left int) int {
	left -= overhead
	switch value := value.(type) {
	case string:
		return left - len(value)
	case json.Number:
		return left - len(value)
	case *big.Int:
		return left - value.BitLen()/8
	case []any:
		for _, element := range value {
			if left < 0 {
				return left
			}
			left = measure(element, left)
		}
	case map[string]any:
		for name, element := range value {
			if left < 0 {
				return left
			}
			left = measure(element, left-len(name))
		}
	}
	return left
}
