package storable

import (
	"strings"
	"testing"
)

func TestABodyBecomesStorableJSON(t *testing.T) {
	t.Parallel()
	const declared = "application/json"
	nested := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	zeros := func(power string, times int) string { return "[" + strings.Repeat("1e"+power+",", times) + "1]" }
	digits := func(n int) string { return "[" + strings.Repeat("1", n) + "]" }
	flat := "[" + strings.Repeat("[],", 600) + "{}]"
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
		"next to surrogates": {`"\ud7ff\ue000"`, declared, `"\ud7ff\ue000"`},
		"the last pair":      {`"\udbff\udfff"`, declared, `"\udbff\udfff"`},
		"the last high":      {`"\udbff"`, declared, `"` + replacement + `"`},
		"the last low":       {`"\udfff"`, declared, `"` + replacement + `"`},
		"high high low":      {`"\ud800\ud83d\ude00"`, declared, `"` + replacement + `\ud83d\ude00"`},
		"raw bad UTF-8":      {"\"\xff\"", declared, `"` + replacement + `"`},
		"huge exponent":      {`[1e999999]`, declared, `"[1e999999]"`},
		"tiny exponent":      {`[1E-999999]`, declared, `"[1E-999999]"`},
		"exponents":          {`[1e400,-2.5E-7,0]`, declared, `[1e400,-2.5E-7,0]`},
		"largest exponents":  {`[1e1000,1e-1000]`, declared, `[1e1000,1e-1000]`},
		"exponent too large": {`[1e1001]`, declared, `"[1e1001]"`},
		"exponent too small": {`[1e-1001]`, declared, `"[1e-1001]"`},
		"most zeros":         {zeros("512", 2048), declared, zeros("512", 2048)},
		"too many zeros":     {zeros("513", 2048), declared, `"` + zeros("513", 2048) + `"`},
		"too many, in front": {zeros("-513", 2048), declared, `"` + zeros("-513", 2048) + `"`},
		"most digits":        {digits(1000), declared, digits(1000)},
		"too many digits":    {digits(1001), declared, `"` + digits(1001) + `"`},
		"deepest":            {nested(500), declared, nested(500)},
		"too deep":           {nested(501), declared, `"` + nested(501) + `"`},
		"wide, not deep":     {flat, declared, flat},
		"blank":              {" \n", "text/plain", `" \n"`},
		"not JSON after all": {`{"a`, declared, `"{\"a"`},
	} {
		if got := string(JSON([]byte(test.body), test.contentType)); got != test.want {
			t.Errorf("%s: %.80s, want %.80s", name, got, test.want)
		}
	}
}

func TestATextIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text   string
		length int
		want   string
	}{
		"shorter":       {"añ", 3, "añ"},
		"as long":       {"añb", 3, "añb"},
		"longer":        {"añbc", 3, "añb"},
		"made storable": {"\x00\xffbc", 3, replacement + replacement + "b"},
		"to nothing":    {"a", 0, ""},
	} {
		if got := First(test.text, test.length); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	if got := Reference(strings.Repeat("é", 300)); got != strings.Repeat("é", 255) {
		t.Errorf("a reference keeps %d octets", len(got))
	}
}
