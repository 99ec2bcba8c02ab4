package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

// adapterOutcomes are those that an adapter may report; the others are the
// engine's.
var adapterOutcomes = []dispatch.Outcome{
	dispatch.Completed, dispatch.NotSent, dispatch.Throttled, dispatch.Rejected, dispatch.Absent, dispatch.Ambiguous, dispatch.InFlight,
}

// strangeRequests asks for what no agent should, and some will. Any outcome
// will do but a panic.
func strangeRequests(b *bench) []Check {
	checks := []Check{b.unknownOperation()}
	for _, strange := range b.strange() {
		seen := b.dispatch(context.Background(), strange.request)
		checks = append(checks, found(strange.name, seen.ended(adapterOutcomes...), seen.String(), "any outcome of an adapter", "a request is data: whatever it holds, it ends in a Result"))
		if seen.Hung {
			return checks
		}
	}
	return append(checks, b.recovery())
}

func (b *bench) unknownOperation() Check {
	request := b.intent()
	request.Tuple.ToolName = provider + "/no_such_operation"
	return unknownOperation(b.dispatch(context.Background(), request))
}

func unknownOperation(seen Seen) Check {
	return found("unknown operation", seen.ended(dispatch.NotSent, dispatch.Rejected), seen.String(), "not_sent or rejected", "an operation that is not configured is never sent")
}

type strange struct {
	name    string
	request dispatch.Request
}

func (b *bench) strange() []strange {
	var all []strange
	for _, payload := range strangePayloads() {
		all = append(all, strange{payload.name, b.intentWith(payload.document)})
	}
	for _, text := range strangeTexts {
		all = append(all, strange{"payload of " + text.name, b.intentWith(reword(b.Payload, text.text))})
		named := b.intent()
		named.Tuple.AgentRunID, named.Tuple.StepID, named.Tuple.BusinessScope = text.text, text.text, text.text
		named.IdempotencyKey, named.ProviderRef = named.Tuple.IdempotencyKey(), text.text
		all = append(all, strange{"tuple of " + text.name, named})
	}
	for _, headers := range strangeHeaders {
		request := b.intent()
		request.Headers = headers.headers
		all = append(all, strange{headers.name, request})
	}
	return all
}

const deep = 9000 // encoding/json reads 10,000 levels

type document struct {
	name     string
	document json.RawMessage
}

// strangePayloads are made when they are asked for: this package is part of the daemon.
func strangePayloads() []document {
	return []document{
		{"no payload", nil},
		{"empty payload", json.RawMessage{}},
		{"null", json.RawMessage(`null`)},
		{"scalar", json.RawMessage(`7`)},
		{"text", json.RawMessage(`"text"`)},
		{"list", json.RawMessage(`[[], {}]`)},
		{"empty object", json.RawMessage(`{}`)},
		{"big numbers", json.RawMessage(`{"a": 123456789012345678901234567890, "b": 1e400, "c": -0.1000000000000000055511151231257827, "d": 9007199254740993}`)},
		{"NUL and halves", json.RawMessage(`{"a": "\u0000", "b": "\ud800", "\u0000": "c"}`)},
		{"a name twice", json.RawMessage(`{"a": 1, "a": 2}`)},
		{"deeply nested", json.RawMessage(strings.Repeat("[", deep) + strings.Repeat("]", deep))},
		{"1 MB", json.RawMessage(`{"a": "` + strings.Repeat("x", 1<<20) + `"}`)},
	}
}

// strangeTexts all fit a part of a tuple.
var strangeTexts = []struct{ name, text string }{
	{"line ends", "a\r\nX-Injected: 1\r\n\r\nb"},
	{"unicode", "ключ 鍵 🔑 \u202e\ufeff é"},
	{"255 octets", strings.Repeat("k", dispatch.MaxPartOctets)},
	{"marks", `../?#&=%zz;'"` + "`" + `$(x)\{}<>|*`},
	{"controls", "\x01\x1b[31m\x7f\t"},
}

var strangeHeaders = []struct {
	name    string
	headers map[string]string
}{
	{"no headers", nil},
	{"invalid headers", map[string]string{
		"bad name\r\nX-Injected": "1\r\n\r\nx", "": "empty", "traceparent": "not a traceparent",
		"tracestate": strings.Repeat("x", 9000), "baggage": "ключ=\x00",
	}},
}

// reword puts a text wherever the document has one, so that a payload stays
// in shape while what it says is strange.
func reword(document json.RawMessage, text string) json.RawMessage {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return document
	}
	reworded, err := json.Marshal(replaceTexts(value, text))
	if err != nil {
		return document
	}
	return reworded
}

func replaceTexts(value any, text string) any {
	switch value := value.(type) {
	case string:
		return text
	case []any:
		for i := range value {
			value[i] = replaceTexts(value[i], text)
		}
	case map[string]any:
		for name := range value {
			value[name] = replaceTexts(value[name], text)
		}
	}
	return value
}
