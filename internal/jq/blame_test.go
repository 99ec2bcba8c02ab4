package jq_test

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/internal/jq"
)

// What is said of a failure has names and types. The input is full of a text that must not
// be repeated.
func TestTheReasonOfAFailureRepeatsNothingOfTheInput(t *testing.T) {
	t.Parallel()
	const input = `{"text": "canary", "list": ["canary"], "object": {"canary": "canary"}, "number": 4711, "true": true}`
	for source, want := range map[string]string{
		".text | keys":                "keys does not take a string",
		".text | tonumber":            "tonumber does not take this value",
		".text | fromjson":            "fromjson does not take this value",
		".number | explode":           "explode does not take a number",
		".text[]":                     "cannot iterate over a string",
		".number.x":                   "expected an object but got a number",
		".list.x":                     "expected an object but got an array",
		".object - .list":             "cannot subtract an object",
		".true * .number":             "cannot multiply a boolean",
		".list | join(\"-\") | error": "it calls error",
		".text | error":               "it calls error",
		".object | error":             "it calls error",
		"\"cannot be applied to: string\" | error":       "it calls error",
		".text | halt_error":                             "it calls error",
		".list | .[0] | test(\"(\")":                     "",
		".list | implode":                                "",
		".object | has(0)":                               "",
		".object | @csv":                                 "",
		".list[0] | strptime(\"%Y\")":                    "",
		".object | to_entries | from_entries | .[0]":     "",
		"[limit(2; .list[], .text)] | .[0] | .[1:\"a\"]": "",
		"empty": "jq gave no result, or more than one",
	} {
		expression, err := jq.Compile(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		decoded, err := jq.Decode([]byte(input))
		if err != nil {
			t.Fatal(err)
		}
		_, err = expression.Eval(t.Context(), decoded)
		if err == nil {
			t.Errorf("%s works", source)
			continue
		}
		reason, kind := jq.Blame(err)
		if strings.Contains(reason+kind, "canary") || strings.Contains(reason, "4711") || reason == "" {
			t.Errorf("%s: says %q, %q", source, reason, kind)
		}
		if want != "" && reason != want {
			t.Errorf("%s: says %q, want %q", source, reason, want)
		}
	}
}

func TestTheTypesOfWhatAnExpressionReads(t *testing.T) {
	t.Parallel()
	input := map[string]any{"payload": map[string]any{"a": nil, "b": true, "c": []any{}, "d": "canary"}}
	for source, want := range map[string]string{
		".payload.d":           ".payload.d is a string",
		".payload.gone.deeper": ".payload.gone is null",
		".payload.d.deeper":    ".payload.d is a string",
		".payload | .d":        ".payload is an object",
		"{a: .payload.a, b: .payload.b, c: .payload.c, d: .payload.d}": ".payload.d is a string, .payload.a is null, .payload.b is a boolean",
		"[.payload.d, .payload.d]":                                     ".payload.d is a string",
		"1":                                                            "",
	} {
		expression, err := jq.Compile(source)
		if err != nil {
			t.Fatal(err)
		}
		if got := expression.Types(input, "a string"); got != want {
			t.Errorf("%s: %s, want %s", source, got, want)
		}
	}
	long, err := jq.Compile("\"" + strings.Repeat("x", 300) + "\"")
	if err != nil {
		t.Fatal(err)
	}
	if got := long.Source(); got != "" {
		t.Errorf("a long expression is repeated as %q", got)
	}
}
