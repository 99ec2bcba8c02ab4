package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainer/remedy"
)

// printHistory writes a few lines an attempt: what it proved, when, by whom, and why; of the
// last one also what its error means.
// keys shows the key of each.
func printHistory(to io.Writer, history []operator.Event, ofMany, keys bool) error {
	s := screenOf(to)
	var text strings.Builder
	for i, event := range history {
		a := event.Attempt
		text.WriteString("\n")
		if ofMany {
			fmt.Fprintf(&text, "intent %d, ", event.IntentID)
		}
		fmt.Fprintf(&text, "attempt %d: %s → %s%s\n", a.Attempt, printable(what(a)), s.paint(printable(a.Status), colours[state(a.Status)]), measured(a))
		lines := []string{s.zonedMoment(a.FinishedAt) + ", by " + printable(actor(a))}
		title, detail := readProblem(a.Problem)
		if ofMany {
			detail = ""
		}
		var known remedy.Error
		if i == len(history)-1 && a.Status != string(dispatch.StatusCompleted) {
			known, _ = remedy.OfAttempt(deref(a.Error))
		}
		for _, said := range []struct{ what, text string }{
			{"error", deref(a.Error)},
			{"means", known.Means},
			{"do", known.Do},
			{"problem", title},
			{"detail", detail},
			{"reason", deref(a.Reason)},
		} {
			if said.text != "" {
				lines = append(lines, said.what+": "+printable(said.text))
			}
		}
		if keys {
			lines = append(lines, "key: "+a.IdempotencyKey)
		}
		for _, line := range lines {
			for _, part := range s.fold(line, 2) {
				fmt.Fprintf(&text, "  %s\n", part)
			}
		}
	}
	return s.write(text.String())
}

// measured is an attempt's HTTP status and duration. What an operator decides has neither.
func measured(a operator.Attempt) (text string) {
	if a.HTTPStatus != nil {
		text = fmt.Sprintf(", HTTP %d", *a.HTTPStatus)
	}
	if a.StartedAt != nil {
		text += ", took " + a.FinishedAt.Sub(*a.StartedAt).Round(time.Millisecond).String()
	}
	return text
}

// longestDetail bounds the detail of a problem, in characters. -o json has all of it.
const longestDetail = 300

// readProblem takes title and detail from a problem document (RFC 9457). The detail may
// repeat the payload, so it is for where that is shown as well.
func readProblem(problem json.RawMessage) (title, detail string) {
	var document struct {
		Title  string `json:"title"`
		Detail string `json:"detail"`
	}
	if json.Unmarshal(problem, &document) != nil {
		return "", ""
	}
	if long := []rune(document.Detail); len(long) > longestDetail {
		document.Detail = string(long[:longestDetail]) + "…"
	}
	return document.Title, document.Detail
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}
