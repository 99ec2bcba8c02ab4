package jq

import (
	"encoding/json"
	"errors"
	"math/big"
	"regexp"
	"slices"
	"strings"

	"github.com/itchyny/gojq"
)

const (
	maxSource = 200 // bytes of an expression that are repeated; of a longer one none are
	maxTypes  = 3
)

// Source is the expression as it was compiled, or "" if it is too long to be repeated. A
// part of it could hold a part of a secret, which nothing would recognise.
func (e *Expression) Source() string {
	if len(e.source) > maxSource {
		return ""
	}
	return e.source
}

// Types says of what JSON type the fields of the input are that the expression takes, as
// far as that is plain and there are objects on the way: ".payload.amount is a string". Those of the type to blame come
// first, and of many only some are told. It never has a value.
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

// TypeOf is the JSON type of a value, with its article.
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

// The evaluator's errors name an operation and a type before they quote a value. Only the
// former are taken from them.
var (
	refusedType  = regexp.MustCompile(`^(@?[a-z_][a-z_0-9]*)(?:\(.*\))? cannot be applied to: (null|boolean|number|string|array|object)\b`)
	refusedValue = regexp.MustCompile(`^(@?[a-z_][a-z_0-9]*)(?:\(.*\))? cannot be applied to `)
	refusedUse   = regexp.MustCompile(`^cannot ([a-z ]+): (null|boolean|number|string|array|object)\b`)
	otherWanted  = regexp.MustCompile(`^(expected an? [a-z ]+) but got: (null|boolean|number|string|array|object)\b`)
)

var articles = map[string]string{
	"null": "null", "boolean": "a boolean", "number": "a number", "string": "a string", "array": "an array", "object": "an object",
}

// Blame says why an evaluation failed, and the type that it failed at if that is known.
// It repeats nothing of the input.
func Blame(err error) (reason, kind string) {
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
