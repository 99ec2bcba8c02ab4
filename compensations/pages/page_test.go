package pages

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
)

// Whoever enqueues chooses a tool's name. No page has another line, another
// direction or another mention by it, and programs read what was said.
func FuzzAToolsNameWritesNoPage(f *testing.F) {
	for _, seed := range []string{
		"stripe/create_charge", "", "/", "x/<!channel>\n```all is well```", "a\r\nb\u0085c\u2028d\u2029e\vf\fg", "\u202eegrahc\u202c/\u2066x", "&lt;!here&gt;", "`x`",
		"\x1b[2J", "p/\x00", "p/\xff", "p/\ufeff\u200b", strings.Repeat("é/", 85), "```", "p/*bold*",
	} {
		f.Add(seed, "operator:on-call")
		f.Add("p/o", seed)
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, name, by string) {
		for _, state := range []State{Open, Acknowledged, Resolved} {
			page := Page{IncidentID: 7, Generation: 1, State: state, Kind: OutcomeUnknown, IntentID: 42, ToolName: name, OpenedAt: at}
			plain := page
			plain.ToolName = "p/o"
			told, want := slackText(page), slackText(plain)
			for _, mark := range []string{"\n", "```", "<", ">"} {
				if strings.Count(told, mark) != strings.Count(want, mark) {
					t.Errorf("%q becomes %q", name, told)
				}
			}
			alert := newAlert(page, at)
			for _, line := range append(strings.Split(told, "\n"), page.Summary(), alert.Labels["provider"], alert.Labels["operation"], page.details().Operation) {
				if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) }) {
					t.Errorf("%q becomes %q", name, line)
				}
			}
			page.By = by
			var read details
			if text, err := json.Marshal(page.details()); err != nil || json.Unmarshal(text, &read) != nil || read.IntentID != 42 || read.State != state {
				t.Errorf("%q of %q is told as %s, %v", name, by, text, err)
			}
		}
	})
}
