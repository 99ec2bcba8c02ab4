package main

import (
	"os"
	"regexp"
	"testing"
)

// What the documentation shows is what people copy.
func TestTheExamplesOfTheDocumentationAreValid(t *testing.T) {
	t.Setenv("SLACK_TOKEN", "xoxb-1")
	for _, name := range []string{"compensation.md", "providers.md"} {
		page, err := os.ReadFile("../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
		if len(examples) == 0 {
			t.Errorf("%s has no example", name)
		}
		for _, example := range examples {
			if got := run(t, "config", "validate", "--config", write(t, "drainer.yaml", string(example[1]))); got.code != exitOK {
				t.Errorf("%s\n%s", got.stderr, example[1])
			}
		}
	}
}
