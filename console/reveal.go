package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// Redaction is a path to values that no person may see, not even an operator. Its parts are names of fields, []
// for each element of a list, and * for each field.
type Redaction []string

// ErrRedaction describes the format of a path.
var ErrRedaction = errors.New("a path is written as .card.number, .items[].secret or .*.token")

// ParseRedaction parses a path.
func ParseRedaction(path string) (Redaction, error) {
	rest, found := strings.CutPrefix(path, ".")
	if !found {
		return nil, fmt.Errorf("%q: %w", path, ErrRedaction)
	}
	parts := strings.Split(strings.ReplaceAll(rest, "[]", ".[]"), ".")
	if strings.HasPrefix(rest, "[]") {
		parts = parts[1:]
	}
	if slices.Contains(parts, "") {
		return nil, fmt.Errorf("%q: %w", path, ErrRedaction)
	}
	return parts, nil
}

func (r Redaction) apply(value any) any {
	if len(r) == 0 {
		return "[redacted]"
	}
	switch value := value.(type) {
	case map[string]any:
		for name := range value {
			if name == r[0] || r[0] == "*" {
				value[name] = r[1:].apply(value[name])
			}
		}
	case []any:
		for i := range value {
			if r[0] == "[]" {
				value[i] = r[1:].apply(value[i])
			}
		}
	}
	return value
}

// mostRevealed bounds each text of a page, in bytes.
const mostRevealed = 64 << 10

// reveal formats JSON for a person, without the redacted values.
func reveal(text json.RawMessage, redactions []Redaction) string {
	if len(text) == 0 {
		return ""
	}
	written, err := redact(text, redactions, "  ")
	if err != nil {
		return "This cannot be read as JSON."
	}
	return visible(string(written))
}

// redact replaces the values at the paths. It keeps every digit of a number.
func redact(text json.RawMessage, redactions []Redaction, indent string) (json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	for _, redaction := range redactions {
		value = redaction.apply(value)
	}
	var written bytes.Buffer
	encoder := json.NewEncoder(&written)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	err := encoder.Encode(value)
	return bytes.TrimSuffix(written.Bytes(), []byte("\n")), err
}

// visible writes invisible characters as escapes, also those that reverse the direction of a line. It cuts the
// text after mostRevealed.
func visible(text string) string {
	var shown strings.Builder
	for _, r := range text {
		if shown.Len() > mostRevealed {
			shown.WriteString("\n… (the rest is longer than a page)")
			break
		}
		switch {
		case r > 0xffff && !unicode.IsPrint(r):
			high := r - 0x10000
			fmt.Fprintf(&shown, `\u%04x\u%04x`, 0xd800+high>>10, 0xdc00+high&0x3ff)
		case r != '\n' && !unicode.IsPrint(r):
			fmt.Fprintf(&shown, `\u%04x`, r)
		default:
			shown.WriteRune(r)
		}
	}
	return shown.String()
}

// revealed holds the texts of models and providers about one intent.
type revealed struct {
	IntentID int64    `json:"intent_id"`
	Texts    []textOf `json:"texts"`
	By       string   `json:"shown_to"`
	Redacted []string `json:"redacted"`
}

type textOf struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// reveal shows payload and responses in two steps, as for a change, because each view is recorded.
func (s *server) reveal(w http.ResponseWriter, r *http.Request, who Person) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		s.fail(w, r, operator.ErrNotFound)
		return
	}
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, errUnreadable)
		return
	}
	if !r.PostForm.Has("reason") {
		s.proposeReveal(w, r, id)
		return
	}
	by := operator.Signature{Operator: who.Name, Reason: r.PostForm.Get("reason")}
	var dossier *operator.Dossier
	err = s.connected(r.Context(), s.Pool, func(ctx context.Context, conn *pgx.Conn) (err error) {
		dossier, err = operator.Open(conn).Reveal(ctx, by, id)
		return err
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	shown := revealed{IntentID: id, By: who.Name}
	add := func(name string, text json.RawMessage) {
		if written := reveal(text, s.Redactions); written != "" && written != "null" {
			shown.Texts = append(shown.Texts, textOf{name, written})
		}
	}
	add("Payload", dossier.Payload)
	if request := s.preview(r.Context(), dossier); request != "" {
		shown.Texts = append(shown.Texts, textOf{"Request of a first attempt, as the configuration makes it now", visible(request)})
	}
	for _, attempt := range dossier.History {
		add(fmt.Sprintf("Response to attempt %d", attempt.Attempt), attempt.Response)
		add(fmt.Sprintf("Headers of the response to attempt %d", attempt.Attempt), attempt.ResponseHeaders)
		add(fmt.Sprintf("Problem of attempt %d", attempt.Attempt), attempt.Problem)
	}
	for _, redaction := range s.Redactions {
		shown.Redacted = append(shown.Redacted, "."+strings.ReplaceAll(strings.Join(redaction, "."), ".[]", "[]"))
	}
	s.show(w, r, http.StatusOK, "reveal", "Payload and responses", shown)
}

// preview returns the request of an intent. Redacted values are removed from the payload first, because the tool's
// mapping may move them.
func (s *server) preview(ctx context.Context, of *operator.Dossier) string {
	if s.Preview == nil {
		return ""
	}
	request := dispatch.Request{
		Tuple:          dispatch.Tuple{AgentRunID: of.AgentRunID, StepID: of.StepID, ToolName: of.ToolName, BusinessScope: of.BusinessScope},
		IdempotencyKey: of.IdempotencyKey, Payload: of.Payload, Attempt: 1,
	}
	if s.PolicyOf != nil {
		policy, _ := s.PolicyOf(request.Tuple.Provider(), request.Tuple.Operation())
		if policy.Payload != nil {
			if violation := policy.Payload.Violation(of.Payload); violation != nil {
				return "None: the payload violates payload_schema: " + violation.Detail
			}
		}
	}
	if len(s.Redactions) > 0 {
		var err error
		if request.Payload, err = redact(of.Payload, s.Redactions, ""); err != nil {
			return "The payload cannot be read as JSON."
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.StatementTimeout)
	defer cancel()
	text, err := s.Preview(ctx, request)
	if err != nil {
		return "None: " + err.Error()
	}
	return text
}

func (s *server) proposeReveal(w http.ResponseWriter, r *http.Request, id int64) {
	var of string
	err := s.read(r.Context(), s.Pool, func(ctx context.Context, on *operator.Console) (err error) {
		of, err = on.RunOf(ctx, id)
		return err
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.show(w, r, http.StatusOK, "confirm", "Show payload and responses", confirmation{
		Verb: "Show payload and responses", Path: r.URL.Path, Changes: 1, Lines: []line{{
			Subject: fmt.Sprintf("intent %d", id), Link: fmt.Sprintf("/intents/%d", id), Run: of, Before: "hidden", After: "shown once, and recorded with your name",
		}},
	})
}
