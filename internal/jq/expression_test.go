package jq_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/internal/jq"
)

func TestAnExpressionSeesItsInputAlone(t *testing.T) {
	t.Setenv("SECRET", "s3cret")
	for source, want := range map[string]string{
		".id":                      "12345678901234567890",
		".id + 1":                  "12345678901234567891",
		".amount":                  "10.10",
		"{id, gone}":               `{"gone":null,"id":12345678901234567890}`,
		"$ENV":                     "{}",
		"env":                      "{}",
		".when | strftime(\"%Y\")": `"1970"`,
	} {
		if got, err := evaluate(t.Context(), t, source); got != want || err != nil {
			t.Errorf("%s: got %s, %v, want %s", source, got, err, want)
		}
	}
}

func TestAnExpressionGivesOneResultInTime(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"empty":            "no result, or more than one",
		".id, .id":         "no result, or more than one",
		".id | keys":       "evaluating jq: ",
		"def f: f; f":      "more than 1048576 steps",
		"[range(1 / 0.0)]": "evaluating jq: ",
		`"x" * 9000000`:    "more than 8 MiB",
		"[range(20000)] as $a | [range(30) | $a]":                 "more than 8 MiB",
		"[range(9)] | map({(tostring): (\"x\" * 1000000)}) | add": "more than 8 MiB",
	} {
		if got, err := evaluate(t.Context(), t, source); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %s, %v, want an error with %q", source, got, err, want)
		}
	}
}

func TestAnExpressionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := evaluate(ctx, t, "def f: f; f"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestWhatChangesWithTimeAndPlaceDoesNotCompile(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		".a |":                          "does not parse at offset",
		"now":                           "depend on the clock",
		"{a: [.b | if . then now end]}": "depend on the clock",
		"0 | localtime":                 "depend on the clock",
		`0 | strflocaltime("%H")`:       "depend on the clock",
		"input":                         "not allowed",
		"debug":                         "not defined",
		`import "a" as $a; .`:           "cannot load module",
		`include "a"; .`:                "cannot load module",
	} {
		if _, err := jq.Compile(source); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", source, err, want)
		}
	}
}

func compiled(t testing.TB, source string) *jq.Expression {
	t.Helper()
	expression, err := jq.Compile(source)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	return expression
}

func evaluate(ctx context.Context, t *testing.T, source string) (string, error) {
	t.Helper()
	input, err := jq.Decode([]byte(`{"id": 12345678901234567890, "amount": 10.10, "when": 0}`))
	if err != nil {
		t.Fatal(err)
	}
	value, err := compiled(t, source).Eval(ctx, input)
	if err != nil {
		return "", err
	}
	return string(jq.Encode(value)), nil
}

// The reason of a failure has names and types. The input is full of a text that the reason must not repeat.
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
		decoded, err := jq.Decode([]byte(input))
		if err != nil {
			t.Fatal(err)
		}
		_, err = compiled(t, source).Eval(t.Context(), decoded)
		if err == nil {
			t.Errorf("%s works", source)
			continue
		}
		reason, kind := jq.Reason(err)
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
		if got := compiled(t, source).Types(input, "a string"); got != want {
			t.Errorf("%s: %s, want %s", source, got, want)
		}
	}
	if got := compiled(t, "\""+strings.Repeat("x", 300)+"\"").Source(); got != "" {
		t.Errorf("a long expression is repeated as %q", got)
	}
}

// Only the digits of a number count, not those of a text.
func TestANumberThatTakesLongToReadIsNone(t *testing.T) {
	t.Parallel()
	longest, digits := strings.Repeat("9", 1000), strings.Repeat("9", 2000)
	for text, want := range map[string]error{
		longest: nil, longest + "9": jq.ErrLongNumber, "-" + longest: jq.ErrLongNumber, "0." + longest: jq.ErrLongNumber,
		`{"a": [{"b": ` + digits + `}]}`: jq.ErrLongNumber, `{"a": "` + digits + `", "` + digits + `": [1, 1e5]}`: nil,
	} {
		if _, err := jq.Decode([]byte(text)); !errors.Is(err, want) {
			t.Errorf("%.20s… of %d bytes: %v, want %v", text, len(text), err, want)
		}
	}
}

// An expression that only moves a value changes no digit of a number and no character of a text.
func FuzzAValueThatIsMovedStaysTheSame(f *testing.F) {
	for _, seed := range []string{
		`{"n": 9007199254740993, "m": 123456789012345678901234567890.10, "z": -0.0, "e": [1E400, 1e-400, 10e+0]}`,
		`{"a": 1, "a": 9007199254740993}`, `"\u0000\ud800\ud83d\ude00\u2028<&>\/"`, `{"": {"\u0000": null}}`, "\"\x7f\xff\"", `[true, false, null]`,
		`{} trailing`, `{}{}`, "", " ", "\ufeff{}", "[1,]", `01`, `-`, "1e99999999999999999999", "[" + strings.Repeat("9", 5000) + "]",
		strings.Repeat("[", 9000) + strings.Repeat("]", 9000), strings.Repeat("[", 11000) + strings.Repeat("]", 11000),
	} {
		f.Add([]byte(seed))
	}
	moved := compiled(f, "{kept: .value} | [.kept][0]")
	f.Fuzz(func(t *testing.T, text []byte) {
		value, err := jq.Decode(text)
		if (err == nil || errors.Is(err, jq.ErrLongNumber)) != json.Valid(text) {
			t.Fatalf("%q: %v", text, err)
		}
		if err != nil {
			return
		}
		result, err := moved.Eval(t.Context(), map[string]any{"value": value})
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if written := jq.Encode(result); !dispatchtest.SameJSON(written, text) {
			t.Errorf("%q becomes %q", text, written)
		}
	})
}

func TestTheFieldsThatAnExpressionTakesFromItsInput(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		".a":                               "a",
		`."a"`:                             "a",
		".a.b[0].c?":                       "a",
		"{x: .a, y: (.b // -.c)}":          "a b c",
		"1 as $x | {a, $x}":                "a",
		"[.a, 1 + .b]":                     "a b",
		`"\(.a) and \(.b)"`:                "a b",
		"if .a then .b else .c end":        "a b c",
		"if .a then 1 elif .b then .c end": "a b c",
		"try .a catch .message":            "a",
		".a as $x | {$x, y: .b}":           "a b",
		".a | .b":                          "a",
		".a | {b}":                         "a",
		".a | map(.b)":                     "a",
		"map_values(.b)":                   "",
		"def f: .b; f":                     "",
		".b = .a":                          "",
		"{} | .b += 1":                     "",
		".":                                "",
	} {
		if got := compiled(t, source).Reads(); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: got %q, want %s", source, got, want)
		}
	}
}

func TestAnExpressionThatTakesNothingButNamedFields(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]bool{
		".a":                                    true,
		".a.b?":                                 true,
		"{x: .a, y: {z: .b.c}, a}":              true,
		`{x: "text", "y": 1, z: true, n: null}`: true,
		".c":                                    false,
		"{x: .a, y: .c}":                        false,
		"{c}":                                   false,
		".a[.c]":                                false,
		".a | .c":                               false,
		`{x: "\(.c)"}`:                          false,
		"{(.c): .a}":                            false,
		"{x: (.a, .c)}":                         false,
		"{x: (.a // .c)}":                       false,
		"{x: {y: .c}}":                          false,
		"{a: 1}[.c]":                            false,
		"def f: .c; {x: f}":                     false,
		"1 as $x | {$x}":                        false,
		"{x: [.a]}":                             false,
		`{"c"}`:                                 false,
		".":                                     false,
		"[.[]]":                                 false,
	} {
		if got := compiled(t, source).ReadsOnly("a", "b"); got != want {
			t.Errorf("%s: got %v", source, got)
		}
	}
}
