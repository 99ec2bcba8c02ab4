package helm_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// People copy the examples of the documentation.
func TestTheValuesInTheDocumentationAreRendered(t *testing.T) {
	t.Parallel()
	blocks := 0
	for _, page := range []string{"../../docs/kubernetes.md", folder + "/README.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile("(?s)```yaml\n(.*?)\n *```").FindAllStringSubmatch(string(text), -1) {
			blocks++
			example := match[1]
			if inList := strings.HasPrefix(example, "   "); inList {
				example = strings.ReplaceAll("\n"+example, "\n   ", "\n")
			}
			v := scenario(t, "minimal").with(t, example)
			for _, manifest := range manifests(t, v) {
				if _, err := decode(manifest); err != nil {
					t.Errorf("%s: %v\n%s", page, err, example)
				}
			}
			if output, err := validate(t, configOf(t, v), v); err != nil {
				t.Errorf("%s: %v\n%s", page, err, output)
			}
		}
	}
	if blocks < 4 {
		t.Errorf("found only %d examples", blocks)
	}
}
