package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainer/config"
)

// A test of the chart reads the same sentence, so that a change of these blocks, and of no others, replaces the pods.
func TestTheDocumentationListsTheBlocksThatNeedARestart(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/reload.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, block := range newOptions(builtins(t)).source(nil, nil).fixedOf(&config.Config{}) {
		blocks = append(blocks, "`"+block.block+"`")
	}
	last := len(blocks) - 1
	want := "Changes of " + strings.Join(blocks[:last], ", ") + " and " + blocks[last] + " need a restart."
	if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), want) {
		t.Errorf("docs/reload.md does not say %q", want)
	}
}
