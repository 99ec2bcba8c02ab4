package jq_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/internal/jq"
)

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
		expression, err := jq.Compile(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got := expression.Reads(); !slices.Equal(got, strings.Fields(want)) {
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
		expression, err := jq.Compile(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
		} else if got := expression.ReadsOnly("a", "b"); got != want {
			t.Errorf("%s: got %v", source, got)
		}
	}
}
