package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// What the documentation shows is what people copy.
func TestTheExamplesOfTheDocumentationAreValid(t *testing.T) {
	for _, name := range []string{"SLACK_TOKEN", "STRIPE_KEY", "PAGERDUTY_KEY"} {
		t.Setenv(name, "secret")
	}
	t.Setenv("DATABASE_URL", "postgres://localhost/app")
	t.Setenv("SLACK_WEBHOOK", "https://hooks.slack.com/services/T0/B0/x")
	t.Setenv("WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	for page, around := range map[string]string{
		"docs/compensation.md": "",
		"docs/incidents.md":    "",
		"docs/providers.md":    "",
		"docs/outcomes.md":     "version: 1\nproviders:\n  bank:\n    adapter: http\n    http: {base_url: https://bank.example}\n",
		"README.md":            yamlIn(t, "README.md")[0],
	} {
		for _, example := range yamlIn(t, page) {
			if isPart := strings.HasPrefix(example, " "); isPart {
				example = around + example
			}
			if got := run(t, "config", "validate", "--config", write(t, "drainer.yaml", example)); got.code != exitOK {
				t.Errorf("%s: %s\n%s", page, got.stderr, example)
			}
		}
	}
}

func yamlIn(t *testing.T, page string) (examples []string) {
	t.Helper()
	text, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
		examples = append(examples, string(match[1]))
	}
	if len(examples) == 0 {
		t.Fatalf("%s has no example", page)
	}
	return examples
}
