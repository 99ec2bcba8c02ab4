package protocol_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol/protocoltest"
)

// A result that contradicts itself must not settle anything, least of all
// somebody else's request.
func TestAResultThatSaysTwoThingsIsNotBelieved(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{
		`{"id":"1","outcome":"ambiguous","outcome":"completed"}`:                        protocol.ErrInvalid,
		`{"id":"1","outcome":"completed","outcome":"completed"}`:                        protocol.ErrInvalid,
		`{"id":"1","outcome":"completed","outcome":null}`:                               protocol.ErrInvalid,
		`{"id":"1","outcome":"completed","response":1,"response":2}`:                    protocol.ErrInvalid,
		`{"id":"1","id":"2","outcome":"completed"}`:                                     protocol.ErrUnaddressed,
		`{"id":"1","outcome":"completed","id":7}`:                                       protocol.ErrUnaddressed,
		`{"id":"1","outcome":"completed"}{"id":"2","outcome":"completed"}`:              protocol.ErrUnaddressed,
		`{"id":"1","outcome":"completed"`:                                               protocol.ErrUnaddressed,
		`{"id":"1","outcome":"completed",}`:                                             protocol.ErrUnaddressed,
		`{"id":"1","outcome":"completed",7:8}`:                                          protocol.ErrUnaddressed,
		`{"id":"1" "outcome":"completed"}`:                                              protocol.ErrUnaddressed,
		`{"id":"1","outcome":5,"http_status":200}`:                                      protocol.ErrInvalid,
		`{"ID":"1","outcome":"completed"}`:                                              protocol.ErrUnaddressed,
		`{"id":"1","Outcome":"completed"}`:                                              protocol.ErrInvalid,
		`{"id":"1","outcome":"completed","extra":1,"extra":2,"response":{"a":1,"a":2}}`: nil,
	} {
		if _, err := protocol.ParseResult([]byte(text)); !errors.Is(err, want) || err == nil != (want == nil) {
			t.Errorf("%s is read with %v, want %v", text, err, want)
		}
	}
}

func TestAFieldOfAnotherSpellingIsNoneOfTheProtocol(t *testing.T) {
	t.Parallel()
	text := `{"id":"1","outcome":"ambiguous","ID":"2","OUTCOME":"completed","Final":true,"Retry_After_MS":5}`
	result, err := protocol.ParseResult([]byte(text))
	if err != nil || result.ID != "1" || result.Outcome != dispatch.Ambiguous || result.Final || result.RetryAfterMS != 0 {
		t.Errorf("%+v, %v", result, err)
	}
}

var className = regexp.MustCompile(`^([a-z][a-z0-9_]{0,63})?$`)

// Nothing that an adapter may say settles what it does not speak of, or makes a
// result that the engine cannot keep.
func FuzzParseResult(f *testing.F) {
	for _, seed := range []string{
		`{"id":"1","outcome":"completed","response":{"a":"\u0000\ud800"},"provider_ref":"\u0000"}`,
		`{"id":"1","outcome":"throttled","retry_after_ms":1e308}`,
		`{"id":"1","outcome":"throttled","retry_after_ms":1e-400}`,
		`{"id":"1","outcome":"in_flight","http_status":409,"final":true,"replayed":true}`,
		`{"id":"1","outcome":"rejected","problem":{"title":"\ud800","detail":"` + strings.Repeat("é", 3000) + `"}}`,
		`{"id":"1","outcome":"completed","response":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`,
		`{"id":"1","outcome":"completed","response":[1e131071,0.10]}`,
		`{"id":"1","outcome":"rejected","outcome":"completed"}`, `{"ID":"1","id":"2","Outcome":"completed","outcome":"absent"}`,
		`{"id":"1","outcome":"completed"}{"id":"2"}`, `{"\u0069d":"1","outcome":"\u0063ompleted"}`,
		`{"id":"1","outcome":5}`, `{"id":null,"outcome":"completed"}`, `null`, `[`, "",
	} {
		f.Add([]byte(seed))
	}
	schema := protocoltest.Published(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		result, err := protocol.ParseResult(text)
		var said map[string]any
		_ = json.Unmarshal(text, &said)
		switch {
		case errors.Is(err, protocol.ErrUnaddressed) != (result.ID == ""):
			t.Fatalf("id %q and %v", result.ID, err)
		case err == nil && (said["id"] != result.ID || said["outcome"] != string(result.Outcome)):
			t.Fatalf("%q is read as %+v", text, result)
		case err != nil && result.Outcome != "":
			t.Fatalf("%q is not believed, and read as %+v", text, result)
		case err != nil:
			return
		}
		if !hugeExponent.Match(text) {
			schema.Check(t, "result", text)
		}
		for _, class := range dispatch.Classes() {
			checkEvidence(t, class, result)
		}
	})
}

func checkEvidence(t *testing.T, class dispatch.Class, result protocol.Result) {
	t.Helper()
	const year = 365 * 24 * 3600
	got := result.Evidence(class)
	switch {
	case got.Outcome == dispatch.Completed && result.Outcome != dispatch.Completed:
		t.Errorf("%s completes it", result.Outcome)
	case got.Outcome == dispatch.InFlight && class == dispatch.NonIdempotent:
		t.Error("in flight, and not to be repeated")
	case got.RetryAfter < 0 || got.RetryAfter.Seconds() > year:
		t.Errorf("retry after %s", got.RetryAfter)
	case (got.Outcome == dispatch.Completed) != (got.ErrorClass == "") || !className.MatchString(got.ErrorClass):
		t.Errorf("%s with error class %q", got.Outcome, got.ErrorClass)
	case got.Response != nil && !json.Valid(got.Response):
		t.Errorf("response %q", got.Response)
	case !isShortText(got.ProviderRef, 255):
		t.Errorf("reference %q", got.ProviderRef)
	case got.Problem != nil && !isShortText(got.Problem.Type+got.Problem.Title+got.Problem.Detail, 6000):
		t.Errorf("problem %q", got.Problem)
	}
}

func isShortText(text string, characters int) bool {
	return utf8.ValidString(text) && !strings.ContainsRune(text, 0) && utf8.RuneCountInString(text) <= characters
}

// hugeExponent finds numbers that the schema's validator would write out.
var hugeExponent = regexp.MustCompile(`[eE][+-]?[0-9]{4}`)
