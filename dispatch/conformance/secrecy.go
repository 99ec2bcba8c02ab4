package conformance

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

// canaryLength is how long a text of a payload must be to be looked for: a
// shorter one may stand in an error class by chance.
const canaryLength = 8

// tells reports whether a result repeats a credential anywhere, or in words
// of failure what the agent asked for. Response and ProviderRef are the
// counterpart's own words, and may well speak of the payload.
func tells(s Seen, secrets []string) bool {
	return containsAny(everything(s.Result), secrets) || containsAny(complaint(s.Result), confided(s.Request))
}

// complaint is what a result says of a failure.
func complaint(r dispatch.Result) string {
	if r.Problem == nil {
		return r.ErrorClass
	}
	return strings.Join([]string{r.ErrorClass, r.Problem.Type, r.Problem.Title, r.Problem.Detail}, "\n")
}

func everything(r dispatch.Result) string {
	words := []string{complaint(r), r.ProviderRef, string(r.Response)}
	words = append(words, textsIn(r.Response)...) // free of JSON's escapes
	for name, value := range r.ResponseHeaders {
		words = append(words, name, value)
	}
	return strings.Join(words, "\n")
}

// confided is what an agent's request says.
func confided(request dispatch.Request) []string {
	var texts []string
	for _, text := range append(textsIn(request.Payload), request.IdempotencyKey, request.Tuple.AgentRunID) {
		if len(text) >= canaryLength {
			texts = append(texts, text)
		}
	}
	return texts
}

// textsIn lists the strings of a document, names among them.
func textsIn(document json.RawMessage) (texts []string) {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err != nil {
			return texts
		}
		if text, ok := token.(string); ok {
			texts = append(texts, text)
		}
	}
}

func containsAny(text string, parts []string) bool {
	for _, part := range parts {
		if part != "" && strings.Contains(text, part) {
			return true
		}
	}
	return false
}
