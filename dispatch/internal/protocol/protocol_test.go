package protocol_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol/protocoltest"
)

func FuzzParseHello(f *testing.F) {
	for _, seed := range []string{
		`{"protocol":[1],"name":"x"}`, `{"protocol":[2,1],"name":"x","operations":{"open":"read_only"}}`, `{"protocol":[1.0],"name":"x"}`,
		`{"protocol":[1],"name":"x","operations":{"":"read_only"}}`, `{"protocol":[2],"name":"x"}`, `{"protocol":[9223372036854775808],"name":"x"}`,
		`{"Protocol":[1],"NAME":"x"}`, `{"protocol":[2],"protocol":[1],"name":"x"}`, `{"protocol":null,"name":"x"}`, `null`, "{",
	} {
		f.Add([]byte(seed))
	}
	schema := protocoltest.Published(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		hello, class := protocol.ParseHello(text)
		if !slices.Contains([]string{"", "invalid_hello", "protocol_version"}, class) || (class == "") != (hello.Name != "") {
			t.Fatalf("%+v, %q", hello, class)
		}
		if class == "" && !hugeExponent.Match(text) {
			schema.Check(t, "hello", text)
		}
		for _, configured := range dispatch.Classes() {
			if promised, known := hello.Operations["open"]; known && configured == dispatch.ReadOnly && promised != configured && hello.Refusal("open", configured) == "" {
				t.Errorf("%s passes for %s", promised, configured)
			}
		}
	})
}

func TestLinesAreReadWhole(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text string
		want []string
		err  error
	}{
		"nothing":               {"", nil, nil},
		"two":                   {"one\ntwo\n", []string{"one", "two"}, nil},
		"empty lines are lines": {"\n\n", []string{"", ""}, nil},
		"the last is cut short": {"one\ntw", []string{"one"}, io.ErrUnexpectedEOF},
		"as long as allowed":    {"12345678\n", []string{"12345678"}, nil},
		"one byte longer":       {"123456789\n", nil, bufio.ErrTooLong},
		"no end":                {strings.Repeat("x", 1000), nil, bufio.ErrTooLong},
	} {
		for way, reader := range map[string]io.Reader{
			"at once":      strings.NewReader(test.text),
			"byte by byte": iotest.OneByteReader(strings.NewReader(test.text)),
		} {
			lines := protocol.Lines(reader, 8)
			var got []string
			for lines.Scan() {
				got = append(got, lines.Text())
			}
			if strings.Join(got, "|") != strings.Join(test.want, "|") || len(got) != len(test.want) || !errors.Is(lines.Err(), test.err) {
				t.Errorf("%s, %s: %q, %v", name, way, got, lines.Err())
			}
		}
	}
}

// The output of a child is split at its newlines, in whatever pieces it arrives, up to the first line that is too
// long or cut short.
func FuzzLines(f *testing.F) {
	for _, seed := range []string{"", "\n", `{"id":"1","outcome":"completed"}` + "\n", "no newline", "\r\n\x00\n", strings.Repeat("long", 30) + "\n", "ok\n" + strings.Repeat("x", 64) + "\n"} {
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, inPieces bool) {
		const longest = 64
		var reader io.Reader = bytes.NewReader(text)
		if inPieces {
			reader = iotest.OneByteReader(reader)
		}
		var want [][]byte
		var wantErr error
		for rest := text; len(rest) > 0; {
			line, after, ended := bytes.Cut(rest, []byte("\n"))
			switch {
			case len(line) > longest:
				wantErr = bufio.ErrTooLong
			case !ended:
				wantErr = io.ErrUnexpectedEOF
			default:
				want = append(want, line)
			}
			if rest = after; wantErr != nil {
				break
			}
		}
		lines := protocol.Lines(reader, longest)
		count := 0
		for ; lines.Scan(); count++ {
			if count >= len(want) || !bytes.Equal(lines.Bytes(), want[count]) {
				t.Fatalf("line %d is %q, want %q", count, lines.Bytes(), want)
			}
		}
		if count != len(want) {
			t.Errorf("%d lines, want %q", count, want)
		}
		if !errors.Is(lines.Err(), wantErr) {
			t.Errorf("%v, want %v", lines.Err(), wantErr)
		}
	})
}

// For any text of an agent, a request is exactly one line with the same values, and the next request begins after
// it.
func FuzzARequestIsOneLine(f *testing.F) {
	for _, seed := range []string{
		`{"n": 9007199254740993, "m": 1.0, "n": -1e400}`, "{\n\"a\":\"next\u0085line\u2028paragraph\u2029\\r\\n\"}", `"\u0000\ud800"`, `"<&>"`,
		strings.Repeat("[", 500) + strings.Repeat("]", 500), strings.Repeat("[", 501) + strings.Repeat("]", 501), `"[[{\"{"`, "1e99999999999", "", "{", "\"\xff\"",
	} {
		f.Add([]byte(seed), "case_7\r\n\u2028\x00", "00-ab\r\nx: y")
	}
	schema := protocoltest.Published(f)
	f.Fuzz(func(t *testing.T, payload []byte, scope, trace string) {
		asked := dispatch.Request{
			Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Attempt: 1, Payload: payload, ProviderRef: scope,
			Headers: map[string]string{"Traceparent": trace},
		}
		asked.Tuple.BusinessScope = scope
		line, err := protocol.Encode(t.Context(), "1", asked)
		if sendable := json.Valid(payload) && depthOf(payload) <= 500; (err == nil) != sendable {
			t.Fatalf("%q: %v", payload, err)
		}
		if err != nil {
			return
		}
		if end := bytes.IndexFunc(line, func(r rune) bool { return strings.ContainsRune("\n\v\f\r\u0085\u2028\u2029", r) }); end != len(line)-1 {
			t.Errorf("a line ends at %d of %q", end, line)
		}
		schema.Check(t, "request", line)
		var read protocol.Request
		if err := json.Unmarshal(line, &read); err != nil {
			t.Fatal(err)
		}
		if !dispatchtest.SameJSON(read.Payload, payload) {
			t.Errorf("%q is sent as %q", payload, read.Payload)
		}
		if utf8.ValidString(scope) && read.Tuple.BusinessScope != scope {
			t.Errorf("%q is sent as %q", scope, read.Tuple.BusinessScope)
		}
		lines := protocol.Lines(io.MultiReader(bytes.NewReader(line), strings.NewReader("next\n")), len(line))
		var stands []string
		for lines.Scan() {
			stands = append(stands, lines.Text())
		}
		if len(stands) != 2 || stands[1] != "next" {
			t.Errorf("behind %q stands %q", line, stands)
		}
	})
}

// depthOf returns the depth of nesting, counted by the decoder's tokens.
func depthOf(text []byte) (deepest int) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	for depth := 0; ; {
		token, err := decoder.Token()
		if err != nil {
			return deepest
		}
		switch token {
		case json.Delim('['), json.Delim('{'):
			depth++
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
		deepest = max(deepest, depth)
	}
}

// A malformed result, or one that contradicts itself, must not settle any request, least of all another one's.
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

// No text of an adapter settles a request that it does not name, or makes a result that the engine cannot keep.
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

func TestThePeersWordsAreNotCut(t *testing.T) {
	t.Parallel()
	for _, how := range []string{`{"id":"1","outcome":"completed","provider_ref":"%s"}`, `{"id":"1","outcome":"rejected","problem":{"type":"%s","title":"%s","detail":"%s"}}`} {
		dispatchtest.ExpectWhole(t, func(words string) dispatch.Result {
			result, err := protocol.ParseResult([]byte(strings.ReplaceAll(how, "%s", words)))
			if err != nil {
				t.Fatal(err)
			}
			return result.Evidence(dispatch.KeyIdempotent)
		})
	}
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
	case !isStorable(got.ProviderRef):
		t.Errorf("reference %q", got.ProviderRef)
	case got.Problem != nil && !isStorable(got.Problem.Type+got.Problem.Title+got.Problem.Detail):
		t.Errorf("problem %q", got.Problem)
	}
}

func isStorable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsRune(text, 0)
}

// hugeExponent matches numbers that the schema's validator would write out in full.
var hugeExponent = regexp.MustCompile(`[eE][+-]?[0-9]{4}`)

// drain dispatches count intents, some at once, and checks that each is completed with a ticket of its own.
func drain(t testing.TB, adapter dispatch.Adapter, count int) {
	t.Helper()
	const atOnce = 16
	steps := make(chan int)
	var workers sync.WaitGroup
	var mu sync.Mutex
	tickets := map[string]int{}
	for range atOnce {
		workers.Go(func() {
			for step := range steps {
				got := adapter.Dispatch(t.Context(), call(fmt.Sprint(step), "open_ticket", `{"title":"x"}`))
				if got.Outcome != dispatch.Completed || got.Replayed {
					t.Errorf("%d: %+v", step, got)
				}
				mu.Lock()
				tickets[got.ProviderRef]++
				mu.Unlock()
			}
		})
	}
	for step := range count {
		steps <- step
	}
	close(steps)
	workers.Wait()
	if len(tickets) != count {
		t.Errorf("%d tickets for %d intents", len(tickets), count)
	}
}

func TestTheExamplesAnswerManyAtOnce(t *testing.T) {
	t.Parallel()
	eachExample(t, func(t *testing.T, language, transport string) {
		drain(t, transports[transport](t, language, filepath.Join(t.TempDir(), "tickets")), 300)
	})
}

// With -benchtime 20000x each example answers 20,000 dispatches. It keeps none of them in a file.
func BenchmarkExamples(b *testing.B) {
	for transport, connect := range transports {
		for language := range languages {
			b.Run(transport+"/"+language, func(b *testing.B) {
				adapter := connect(b, language, "")
				b.ResetTimer()
				drain(b, adapter, b.N)
			})
		}
	}
}
