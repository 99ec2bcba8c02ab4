package storable

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestABodyBecomesStorableJSON(t *testing.T) {
	t.Parallel()
	const declared = "application/json"
	deep := strings.Repeat("[", 600) + strings.Repeat("]", 600)
	for name, test := range map[string]struct{ body, contentType, want string }{
		"empty":              {"", declared, ""},
		"verbatim":           {"{\"b\": 1,\n \"a\":\"\\u00e9\\\\u0000\"}", declared, "{\"b\": 1,\n \"a\":\"\\u00e9\\\\u0000\"}"},
		"scalar":             {"true", declared, "true"},
		"problem":            {`{"title":"x"}`, "application/problem+json", `{"title":"x"}`},
		"JSON as text":       {` [1]`, "text/plain", ` [1]`},
		"number as text":     {"12", "text/plain", `"12"`},
		"text":               {"a\x00b\xffc", "text/plain", `"a` + replacement + `b` + replacement + `c"`},
		"escaped NUL":        {`{"a\u0000":"\u0000"}`, declared, `{"a` + replacement + `":"` + replacement + `"}`},
		"lone high":          {`"\ud800x"`, declared, `"` + replacement + `x"`},
		"lone low":           {`"\udc00"`, declared, `"` + replacement + `"`},
		"high high low":      {`"\ud800\ud83d\ude00"`, declared, `"` + replacement + `\ud83d\ude00"`},
		"raw bad UTF-8":      {"\"\xff\"", declared, `"` + replacement + `"`},
		"huge exponent":      {`[1e999999]`, declared, `"[1e999999]"`},
		"too deep":           {deep, declared, `"` + deep + `"`},
		"not JSON after all": {`{"a`, declared, `"{\"a"`},
	} {
		if got := string(JSON([]byte(test.body), test.contentType)); got != test.want {
			t.Errorf("%s: %.80s, want %.80s", name, got, test.want)
		}
	}
}

func FuzzStorableIsJSONWithoutNUL(f *testing.F) {
	for _, seed := range []string{`{"a":"\u0000"}`, `"\ud800"`, `["\ud83d\ude00", 1e5]`, "x\x00", `"\\u0000"`} {
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, body []byte, declared bool) {
		contentType := "text/plain"
		if declared {
			contentType = "application/json"
		}
		got := JSON(body, contentType)
		if got == nil {
			return
		}
		var value any
		if err := json.Unmarshal(got, &value); err != nil || !utf8.Valid(got) {
			t.Fatalf("not JSON: %q", got)
		}
		text, err := json.Marshal(value)
		if err != nil || strings.Contains(strings.ReplaceAll(string(text), `\\`, ""), `\u0000`) {
			t.Fatalf("holds a NUL: %q", got)
		}
	})
}
