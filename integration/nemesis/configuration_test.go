package nemesis_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// configuration is the daemons' file, which changes while they run.
type configuration struct {
	path string
	text string
}

// newConfiguration adds to a world's file what it has not: credentials and a
// pager, who is told so often that repetitions compete with news. Breakers and
// rows that cannot succeed end sooner, so that rest comes soon. Absence is
// believed later than any suspended daemon may still send.
func newConfiguration(t testing.TB, path, pagerURL string) *configuration {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	replaced := strings.NewReplacer(
		"http: {base_url: ", `http: {headers: {Authorization: "Bearer ${env:PROVIDER_TOKEN}"}, base_url: `,
		"    concurrency: 16\n", "    concurrency: 16\n    circuit_breaker: {consecutive_failures: 3, cool_down: 1s}\n",
		"max_attempts: 50", "max_attempts: 8",
		"margin: 500ms", "margin: 1500ms",
	).Replace(string(text))
	c := &configuration{path: path, text: replaced + fmt.Sprintf("page_repeat: 1m\npages:\n  - webhook: {url: %q, secret: \"${env:PAGER_SECRET}\"}\n", pagerURL)}
	if err := c.limit(16); err != nil {
		t.Fatal(err)
	}
	return c
}

// limit sets how many requests each provider may have at once. The file changes
// all at once: somebody may be reading it.
func (c *configuration) limit(concurrency int) error {
	text := strings.ReplaceAll(c.text, "concurrency: 16", fmt.Sprintf("concurrency: %d", concurrency))
	if err := os.WriteFile(c.path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(c.path+".new", c.path)
}
