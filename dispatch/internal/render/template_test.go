package render

import (
	"strings"
	"testing"
)

// A brace that is doubled is a brace, everywhere; what is no placeholder stays
// as it is.
func FuzzATemplateKeepsItsText(f *testing.F) {
	for _, seed := range []string{
		"", "/v1/charges/{.payload.id}", "{{}}", "{", "}", "{}", "{{{.a}}}", `{"}"}`, `{"\(.a)"}/{{`, "{.a} {.b", "{{.a}", "é{.é}\x00", strings.Repeat("{", 50) + strings.Repeat("}", 50),
		"{.a | now}", `{{"a": {.b}}}`, "{#}\n}",
	} {
		f.Add(seed)
	}
	doubled := strings.NewReplacer("{", "{{", "}", "}}")
	f.Fuzz(func(t *testing.T, text string) {
		literal, err := ParseTemplate(doubled.Replace(text))
		if err != nil || literal.HasValue() {
			t.Fatalf("%q: %v, %v", text, literal, err)
		}
		if got, err := literal.Render(t.Context(), nil, AsIs); err != nil || got != text {
			t.Errorf("%q becomes %q, %v", text, got, err)
		}
		parsed, err := ParseTemplate(text)
		if err != nil {
			return
		}
		left := text
		for _, piece := range parsed {
			_, after, found := strings.Cut(left, doubled.Replace(piece.Literal))
			if !found {
				t.Fatalf("%q is read as %+v", text, parsed)
			}
			left = after
		}
		if !parsed.HasValue() && strings.NewReplacer("{{", "{", "}}", "}").Replace(text) != parsed[0].Literal {
			t.Errorf("%q is read as %+v", text, parsed)
		}
	})
}
