package jq_test

import (
	"context"
	"errors"
	"strings"
	"testing"

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

func evaluate(ctx context.Context, t *testing.T, source string) (string, error) {
	t.Helper()
	expression, err := jq.Compile(source)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	input, err := jq.Decode([]byte(`{"id": 12345678901234567890, "amount": 10.10, "when": 0}`))
	if err != nil {
		t.Fatal(err)
	}
	value, err := expression.Eval(ctx, input)
	if err != nil {
		return "", err
	}
	return string(jq.Encode(value)), nil
}
