package dispatchtest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agentoutbox/drainer/dispatch"
)

// Check is one check of an adapter and its result.
type Check struct {
	Name     string  `json:"name"`
	Verdict  Verdict `json:"verdict"`
	Seen     string  `json:"seen"`
	Expected string  `json:"expected"`
	Advice   string  `json:"advice,omitempty"`
}

// Verdict is the result of a check.
type Verdict string

const (
	OK        Verdict = "ok"
	Warning   Verdict = "warning"    // not as expected, but no effect is at risk
	Failed    Verdict = "failed"     // a promise is not kept
	Skipped   Verdict = "not run"    // the check was not made
	NoVerdict Verdict = "no verdict" // the counterpart could not be reached or did not answer
)

// Passed reports whether every check that was made got an answer and passed.
func Passed(checks []Check) bool {
	return !slices.ContainsFunc(checks, func(c Check) bool { return c.Verdict == Failed || c.Verdict == NoVerdict })
}

// found makes a check that passes if holds is true.
func found(name string, holds bool, seen, expected, advice string) Check {
	check := Check{Name: name, Verdict: OK, Seen: seen, Expected: expected}
	if !holds {
		check.Verdict, check.Advice = Failed, advice
	}
	return check
}

func skipped(name, expected, why string) Check {
	return Check{Name: name, Verdict: Skipped, Seen: "nothing", Expected: expected, Advice: why}
}

// manners checks the rules of every dispatch and of every adapter, in any trial. It closes the adapter.
func (b *bench) manners() []Check {
	seen := b.seen()
	checks := append(judge(seen), discreet(seen, b.Secrets))
	if slices.ContainsFunc(seen, func(s Seen) bool { return s.Hung }) {
		return checks // the adapter cannot be closed while a dispatch is under way
	}
	return append(checks, b.messages(seen), closed(b.close()), left(b.owner.awaitNone(b.subject.soon())), b.connectionsLeft())
}

// judge checks the rules of every dispatch.
func judge(seen []Seen) []Check {
	return []Check{
		each(seen, "returns", "every dispatch", "Dispatch must return soon after ctx ends", func(s Seen) bool { return !s.Hung }),
		each(seen, "no panic", "every dispatch", "the engine survives it, and takes the outcome for ambiguous", func(s Seen) bool { return s.Panic == "" }),
		each(seen, "result", "an outcome of an adapter, and an error class if it is not completed", "ErrorClass is short and stable: [a-z0-9_], at most 64", wellFormed),
		each(seen, "storable", "a result that fits text and jsonb columns", "no NUL, valid UTF-8, valid JSON", fitsColumns),
		each(seen, "request unchanged", "the request as it was", "Request belongs to the caller", func(s Seen) bool { return !s.Changed }),
	}
}

func discreet(seen []Seen, secrets []string) Check {
	return each(seen, "no secret", "a result that repeats none", "results are stored and shown: name the kind of a failure, in words of your own", func(s Seen) bool { return !repeats(s, secrets) })
}

// each makes one check over all dispatches. It shows the first dispatch that fails it.
func each(seen []Seen, name, expected, advice string, holds func(Seen) bool) Check {
	for _, s := range seen {
		if !holds(s) {
			return found(name, false, "not so: "+outline(s), expected, advice)
		}
	}
	return found(name, true, fmt.Sprintf("%d dispatches", len(seen)), expected, "")
}

// outline describes a dispatch without the adapter's own text, which may contain the secret.
func outline(s Seen) string {
	if s.Hung || s.Panic != "" {
		return s.String()
	}
	return "a dispatch that ended as " + fmt.Sprintf("%q", s.Result.Outcome)
}

var errorClass = regexp.MustCompile(`^[a-z0-9_]{1,64}$`)

func wellFormed(s Seen) bool {
	switch {
	case s.Hung || s.Panic != "":
		return true // there is no result to judge
	case !slices.Contains(adapterOutcomes, s.Result.Outcome) || s.Result.RetryAfter < 0:
		return false
	}
	return s.Result.Outcome == dispatch.Completed && s.Result.ErrorClass == "" || errorClass.MatchString(s.Result.ErrorClass)
}

// messages compares the messages that the counterpart received with the adapter's results. An unsent message must
// not arrive, no message may arrive twice, and a completed intent must have arrived.
func (b *bench) messages(seen []Seen) Check {
	sent, done := 0, map[string]bool{}
	for _, s := range seen {
		if !s.ended(dispatch.NotSent) {
			sent++
		}
		if s.ended(dispatch.Completed) && !s.Result.Replayed {
			done[s.Request.IdempotencyKey] = true
		}
	}
	arrived := 0
	await(b.subject.patience(), func() bool {
		arrived = len(b.Received())
		return arrived >= len(done)
	})
	words := fmt.Sprintf("%d arrived, of %d dispatches that may have sent and %d intents that are done", arrived, sent, len(done))
	switch {
	case arrived > sent:
		return found("messages", false, words, "at most one a dispatch", "one Dispatch sends at most once, and says not_sent only where no byte left; switch off the repetition that a library does by itself")
	case arrived < len(done):
		return found("messages", false, words, "at least one an intent that is done", "an effect is claimed of what never arrived, or Received does not show it")
	}
	return found("messages", true, words, "at most one a dispatch", "")
}

func closed(err error) Check {
	return found("closes", err == nil, words(err, "closed"), "Close returns soon and without an error", "Close is called once, after the last Dispatch returned")
}

func left(goroutines []string) Check {
	seen := cmp.Or(strings.Join(goroutines, "; "), "none")
	return found("goroutines", len(goroutines) == 0, seen, "none left after Close", "Close ends what New and Dispatch began, and waits for it")
}

func (b *bench) connectionsLeft() Check {
	await(b.subject.soon(), func() bool { return b.network.open.Load() == 0 })
	open := b.network.open.Load()
	return found("connections", open == 0, fmt.Sprintf("%d open", open), "none left after Close", "close what DialContext opened")
}

// canaryLength is how long a text of a payload must be for a search in results, in bytes. A shorter text may occur
// in an error class by chance.
const canaryLength = 8

// repeats reports whether a result contains a credential, or whether its error
// texts contain the agent's request. Response and ProviderRef come from the
// counterpart and may contain the payload.
func repeats(s Seen, secrets []string) bool {
	return containsAny(everything(s.Result), secrets) || containsAny(complaint(s.Result), confided(s.Request))
}

// complaint returns the text of a failure in a result.
func complaint(r dispatch.Result) string {
	if r.Problem == nil {
		return r.ErrorClass
	}
	return strings.Join([]string{r.ErrorClass, r.Problem.Type, r.Problem.Title, r.Problem.Detail}, "\n")
}

func everything(r dispatch.Result) string {
	words := []string{complaint(r), r.ProviderRef, string(r.Response)}
	words = append(words, textsIn(r.Response)...) // without JSON's escapes
	for name, value := range r.ResponseHeaders {
		words = append(words, name, value)
	}
	return strings.Join(words, "\n")
}

// confided lists the values of an agent's request that results must not repeat.
func confided(request dispatch.Request) []string {
	var texts []string
	for _, text := range append(textsIn(request.Payload), request.IdempotencyKey, request.Tuple.AgentRunID) {
		if len(text) >= canaryLength {
			texts = append(texts, text)
		}
	}
	return texts
}

// textsIn lists the strings of a document, including names.
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

// fitsColumns reports whether Postgres can store a result: text must be valid UTF-8 without NUL, and jsonb must not
// contain a NUL in any form.
func fitsColumns(s Seen) bool {
	words := []string{s.Result.ErrorClass, s.Result.ProviderRef}
	for name, value := range s.Result.ResponseHeaders {
		words = append(words, name, value)
	}
	if p := s.Result.Problem; p != nil {
		words = append(words, p.Type, p.Title, p.Detail)
	}
	if response := s.Result.Response; response != nil {
		if !json.Valid(response) {
			return false
		}
		words = append(append(words, string(response)), textsIn(response)...)
	}
	for _, word := range words {
		if !utf8.ValidString(word) || strings.ContainsRune(word, 0) {
			return false
		}
	}
	return true
}
