package main

import (
	"os"
	"regexp"
	"testing"
)

// What the documentation shows is what people copy.
func TestTheExamplesOfTheDocumentationAreValid(t *testing.T) {
	t.Setenv("SLACK_TOKEN", "xoxb-1")
	page, err := os.ReadFile("../../docs/providers.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	if len(examples) == 0 {
		t.Fatal("docs/providers.md has no example")
	}
	for _, example := range examples {
		if got := run(t, "config", "validate", "--config", write(t, "drainer.yaml", string(example[1]))); got.code != exitOK {
			t.Errorf("%s\n%s", got.stderr, example[1])
		}
	}
}
