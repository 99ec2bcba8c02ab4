package jq

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
)

func TestAResultIsMeasured(t *testing.T) {
	t.Parallel()
	const plenty = 1000
	for name, test := range map[string]struct {
		value any
		want  int
	}{
		"null":    {nil, overhead},
		"boolean": {true, overhead},
		"integer": {7, overhead},
		"text":    {"abc", overhead + 3},
		"number":  {json.Number("12345"), overhead + 5},
		"large":   {new(big.Int).Lsh(big.NewInt(1), 80), overhead + 10},
		"list":    {[]any{"ab", nil}, overhead + (overhead + 2) + overhead},
		"object":  {map[string]any{"key": "v"}, overhead + 3 + (overhead + 1)},
	} {
		if got := plenty - measure(test.value, plenty); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestAResultOfJustTheLimitPasses(t *testing.T) {
	t.Parallel()
	most := strings.Repeat("x", resultLimit-overhead)
	for text, passes := range map[string]bool{most: true, most + "x": false} {
		for _, source := range []string{".text", ".text | ."} {
			expression, err := Compile(source)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := expression.Eval(t.Context(), map[string]any{"text": text}); (err == nil) != passes {
				t.Errorf("%s of %d bytes: %v", source, len(text), err)
			}
		}
	}
}
