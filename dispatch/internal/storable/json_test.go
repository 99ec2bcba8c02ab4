package storable

import (
	"strings"
	"testing"
)

func TestABodyBecomesStorableJSON(t *testing.T) {
	t.Parallel()
	const declared = "application/json"
	deep := strings.Repeat("[", 600) + strings.Repeat("]", 600)
	zeros, digits := "["+strings.Repeat("1e999,", 1100)+"1]", "["+strings.Repeat("1", 1001)+"]"
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
		"tiny exponent":      {`[1E-999999]`, declared, `"[1E-999999]"`},
		"many zeros":         {zeros, declared, `"` + zeros + `"`},
		"as many as fit":     {`[1e400,-2.5E-7,0]`, declared, `[1e400,-2.5E-7,0]`},
		"many digits":        {digits, declared, `"` + digits + `"`},
		"too deep":           {deep, declared, `"` + deep + `"`},
		"not JSON after all": {`{"a`, declared, `"{\"a"`},
	} {
		if got := string(JSON([]byte(test.body), test.contentType)); got != test.want {
			t.Errorf("%s: %.80s, want %.80s", name, got, test.want)
		}
	}
}
