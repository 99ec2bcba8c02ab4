package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

// Who was woken up types what the runbook says.
func TestTheCommandsOfTheRunbooksExist(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	inCode := regexp.MustCompile("(?m)(?:^|`)(drainer [^`\n]*)")
	tested := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range inCode.FindAllStringSubmatch(string(text), -1) {
			tested++
			if err := parses(builtins(t), match[1]); err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(page), match[1], err)
			}
		}
	}
	if tested < 30 {
		t.Errorf("only %d commands were found", tested)
	}
}

// parses reports what is wrong with a command line, without running it.
func parses(registry dispatch.Registry, line string) error {
	words := regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1)
	for i := range words {
		words[i] = strings.Trim(words[i], `"`)
	}
	command, rest, err := newRoot(registry).Find(words[1:])
	if err != nil {
		return err
	}
	if err := command.ParseFlags(rest); err != nil {
		return err
	}
	return command.ValidateArgs(command.Flags().Args())
}
