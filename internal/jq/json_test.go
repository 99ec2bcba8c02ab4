package jq_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/internal/jq"
)

// Only digits of a number count.
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

// What an expression only moves, it does not change: no digit of a number, no
// character of a text.
func FuzzAValueThatIsMovedStaysTheSame(f *testing.F) {
	for _, seed := range []string{
		`{"n": 9007199254740993, "m": 123456789012345678901234567890.10, "z": -0.0, "e": [1E400, 1e-400, 10e+0]}`,
		`{"a": 1, "a": 9007199254740993}`, `"\u0000\ud800\ud83d\ude00\u2028<&>\/"`, `{"": {"\u0000": null}}`, "\"\x7f\xff\"", `[true, false, null]`,
		`{} trailing`, `{}{}`, "", " ", "\ufeff{}", "[1,]", `01`, `-`, "1e99999999999999999999", "[" + strings.Repeat("9", 5000) + "]",
		strings.Repeat("[", 9000) + strings.Repeat("]", 9000), strings.Repeat("[", 11000) + strings.Repeat("]", 11000),
	} {
		f.Add([]byte(seed))
	}
	moved, err := jq.Compile("{kept: .value} | [.kept][0]")
	if err != nil {
		f.Fatal(err)
	}
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
