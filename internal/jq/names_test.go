package jq

import (
	"context"
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
