package protocol_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol/protocoltest"
)

var tuple = dispatch.Tuple{AgentRunID: "run-001", StepID: "step-1", ToolName: "desk/open", BusinessScope: "case_7"}

func TestWhatDrainerSaysIsAsPublished(t *testing.T) {
	t.Parallel()
	schema := protocoltest.Published(t)
	schema.Check(t, "hello", protocol.Greeting())
	for name, request := range map[string]dispatch.Request{
		"plain":       {Payload: json.RawMessage(`{}`)},
		"no payload":  {},
		"big numbers": {Payload: json.RawMessage(`[9007199254740993, 1e400, 1.0]`)},
		"lookup":      {Payload: json.RawMessage(`"x"`), ProviderRef: "T-7"},
		"traced":      {Payload: json.RawMessage(`null`), Headers: map[string]string{"TraceParent": "00-ab", "baggage": "a=b", "cookie": "no"}},
	} {
		request.Tuple, request.IdempotencyKey, request.Attempt = tuple, tuple.IdempotencyKey(), 2
		line, err := protocol.Encode(t.Context(), "1", request)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		schema.Check(t, "request", line)
		if bytes.Count(line, []byte("\n")) != 1 {
			t.Errorf("%s is not one line: %q", name, line)
		}
	}
}

func TestNothingInALineLooksLikeItsEnd(t *testing.T) {
	t.Parallel()
	const text = "next\u0085line\u2028paragraph\u2029\r\n"
	asked := dispatch.Request{Tuple: tuple, Payload: json.RawMessage("{\n\"a\":\"next\u0085line\u2028paragraph\u2029\\r\\n\"}")}
	asked.Tuple.BusinessScope = text
	line, err := protocol.Encode(t.Context(), "1", asked)
	if err != nil {
		t.Fatal(err)
	}
	if end := bytes.IndexFunc(line, func(r rune) bool { return strings.ContainsRune("\n\v\f\r\u0085\u2028\u2029", r) }); end != len(line)-1 {
		t.Errorf("a line ends at %d of %q", end, line)
	}
	var read protocol.Request
	if err := json.Unmarshal(line, &read); err != nil {
		t.Fatal(err)
	}
	var payload struct{ A string }
	if err := json.Unmarshal(read.Payload, &payload); err != nil || payload.A != text || read.Tuple.BusinessScope != text {
		t.Errorf("%q arrived as %q and %q, %v", text, payload.A, read.Tuple.BusinessScope, err)
	}
}

func TestAPayloadThatOthersCannotReadIsNotSent(t *testing.T) {
	t.Parallel()
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for payload, sent := range map[string]bool{
		nested(500):                             true,
		nested(501):                             false,
		`{"a":` + nested(499) + `}`:             true,
		`{"a":` + nested(500) + `}`:             false,
		`"` + strings.Repeat(`[\"{`, 600) + `"`: true,
		`{"a":`:                                 false,
	} {
		_, err := protocol.Encode(t.Context(), "1", dispatch.Request{Tuple: tuple, Payload: json.RawMessage(payload)})
		if (err == nil) != sent {
			t.Errorf("%.20s…: %v", payload, err)
		}
	}
}

// What is read from an adapter, and what the schema says of it, agree.
func TestTheSchemaKnowsAResultAsDrainerDoes(t *testing.T) {
	t.Parallel()
	schema := protocoltest.Published(t)
	for text, valid := range map[string]bool{
		`{"id":"1","outcome":"completed"}`:                                  true,
		`{"id":"1","outcome":"completed","response":{"a":[1]},"extra":1}`:   true,
		`{"id":"1","outcome":"throttled","retry_after_ms":0.5}`:             true,
		`{"id":"1","outcome":"rejected","problem":{"title":"No"}}`:          true,
		`{"id":"1","outcome":"rejected","problem":null,"error_class":null}`: true,
		`{"id":"1","outcome":"ambiguous","final":true,"http_status":500}`:   true,
		`{"id":"1","outcome":"lost"}`:                                       false,
		`{"id":"1"}`:                                                        false,
		`{"id":1,"outcome":"completed"}`:                                    false,
		`{"outcome":"completed"}`:                                           false,
		`{"id":"1","outcome":"rejected","error_class":"No way"}`:            false,
		`{"id":"1","outcome":"rejected","http_status":99}`:                  false,
		`{"id":"1","outcome":"rejected","http_status":"200"}`:               false,
		`{"id":"1","outcome":"throttled","retry_after_ms":-1}`:              false,
		`{"id":"1","outcome":"rejected","problem":"No"}`:                    false,
		`[]`:   false,
		`null`: false,
	} {
		if _, err := protocol.ParseResult([]byte(text)); (err == nil) != valid {
			t.Errorf("%s is read with %v", text, err)
		}
		if err := schema.Validate("result", []byte(text)); (err == nil) != valid {
			t.Errorf("%s is published with %v", text, err)
		}
	}
}

func TestTheSchemaKnowsAHelloAsDrainerDoes(t *testing.T) {
	t.Parallel()
	schema := protocoltest.Published(t)
	for text, valid := range map[string]bool{
		`{"protocol":[1],"name":"x"}`:                                     true,
		`{"protocol":[1,2],"name":"x","operations":{"open":"read_only"}}`: true,
		`{"protocol":[1],"name":"x","operations":null}`:                   true,
		`{"protocol":[],"name":"x"}`:                                      false,
		`{"protocol":1,"name":"x"}`:                                       false,
		`{"protocol":[1],"name":""}`:                                      false,
		`{"protocol":[1]}`:                                                false,
		`{"protocol":[1],"name":"x","operations":{"open":"safe"}}`:        false,
		`{"protocol":[1],"name":"x","operations":{"":"read_only"}}`:       false,
		`{"protocol":[1],"name":"x","operations":["open"]}`:               false,
		`{"Protocol":[1],"name":"x"}`:                                     false,
	} {
		if _, class := protocol.ParseHello([]byte(text)); (class == "") != valid {
			t.Errorf("%s is read with %q", text, class)
		}
		if err := schema.Validate("hello", []byte(text)); (err == nil) != valid {
			t.Errorf("%s is published with %v", text, err)
		}
	}
}
