package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// A tool's name is whatever an agent says; a table shows it on a terminal.
func TestWhatAgentsNameCommandsNoTerminal(t *testing.T) {
	t.Parallel()
	const hostile = "pay\x1b[2J\x1b]52;c;cm0=\a\r\nstripe\t0\u009b\u202e"
	seen := glance{Overview: operator.Overview{Providers: []operator.ProviderOverview{{Provider: hostile}}}}
	for name, show := range map[string]func(*bytes.Buffer) error{
		"status":          func(to *bytes.Buffer) error { return writeOverview(to, seen.Overview) },
		"status, watched": func(to *bytes.Buffer) error { return lineView{to}.show(seen) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var printed bytes.Buffer
			if err := show(&printed); err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(printed.String(), "\n", "")
			if strings.ContainsFunc(text, isUnprintable) {
				t.Errorf("it prints %q", text)
			}
			if !strings.Contains(text, `pay\x1b[2J`) || strings.Count(printed.String(), "\n") > 2 {
				t.Errorf("it does not name the provider in one line: %q", printed.String())
			}
		})
	}
}
