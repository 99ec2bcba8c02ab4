package main

import (
	"fmt"
	"testing"
)

func TestWordsAreFoundWithTheirLines(t *testing.T) {
	t.Parallel()
	const code = "package p\n\n// First is fine.\n// But nobody reads it.\nconst x = \"%s\"\n"
	for name, test := range map[string]struct {
		path, source string
		want         string
	}{
		"a comment of Go":         {"p.go", fmt.Sprintf(code, "fine"), `[{4 nobody}]`},
		"a comment of a test":     {"p_test.go", fmt.Sprintf(code, "fine"), `[{4 nobody}]`},
		"a text":                  {"p.go", fmt.Sprintf(code, "it goes back"), `[{4 nobody} {5 goes back}]`},
		"a text of a test":        {"p_test.go", fmt.Sprintf(code, "it goes back"), `[{4 nobody}]`},
		"a name":                  {"p.go", fmt.Sprintf(code, "nobody"), `[{4 nobody}]`},
		"Markdown":                {"p.md", "# Title\n\nThis is what\nWhoever reads.\n", `[{4 Whoever} {3 is what}]`},
		"a comment of SQL":        {"p.sql", "-- 8 octets\nSELECT 'nobody', 1 -- read anew\n", `[{1 octets} {2 anew}]`},
		"a block of Markdown":     {"p.md", "```\nnobody\n```\n8 octets\n", `[{4 octets}]`},
		"a quotation of Markdown": {"p.md", "`nobody` is \"nobody\", application/octet-stream\n", `[]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, err := check(test.path, []byte(test.source))
			if err != nil {
				t.Fatal(err)
			}
			type short struct {
				line int
				word string
			}
			got := make([]short, len(found))
			for i, f := range found {
				got[i] = short{f.line, f.word}
			}
			if fmt.Sprint(got) != test.want {
				t.Errorf("found %v, want %s", got, test.want)
			}
		})
	}
}
