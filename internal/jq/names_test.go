package jq

import (
	"context"
	"encoding/json"
	"math/big"
	"strings"
	"testing"

	"github.com/itchyny/gojq"
)

// Whatever is found without the evaluator, the evaluator finds too.
func TestAPlainPathGivesWhatTheEvaluatorGives(t *testing.T) {
	t.Parallel()
	const input = `{"id": "ch_1", "charge": {"id": "ch_2", "7": "ch_3"}, "amount": 12345678901234567890, "none": null, "list": ["ch_4"]}`
	for source, isPlain := range map[string]bool{
		".id": true, ".charge.id": true, ".amount": false, ".gone": false, ".none.id": false, ".charge": false,
		`.charge["id"]`: false, ".list[0]": false, ".charge[]": false, ".id?": false, ".id // 1": false, ".id | .": false,
		".": false, "..": false, `"id"`: false, "def id: 1; .id": false, ".charge.id as $x | .id": false, "-.amount": false,
		".charge.gone": false, `.id, .id`: false,
	} {
		query, err := gojq.Parse(source)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		decoded, err := Decode([]byte(input))
		if err != nil {
			t.Fatal(err)
		}
		text, found := textAt(names(query), decoded)
		if found != isPlain {
			t.Errorf("%s: found without the evaluator is %t, want %t", source, found, isPlain)
		}
		if !found {
			continue
		}
		if value, _ := query.RunWithContext(context.Background(), decoded).Next(); value != text {
			t.Errorf("%s: got %q, and %v by the evaluator", source, text, value)
		}
	}
}

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
