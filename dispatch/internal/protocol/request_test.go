package protocol_test

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol/protocoltest"
)

// Whatever an agent wrote, a request is one line, says exactly that, and the
// next one begins behind it.
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

// depthOf counts by the decoder's own tokens.
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
