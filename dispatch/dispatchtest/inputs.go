package dispatchtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/agentoutbox/drainer/dispatch"
)

const canary = "canary-5f1c"

// canaries replace the values of a configuration: a word, and a text that no parser accepts.
var canaries = []string{canary, canary + " {(%zz:// \\"}

// building checks how New handles the configuration.
func building(b *bench) []Check {
	checks := []Check{
		b.decodes("settings", b.Settings, b.subject.Kind.Settings),
		b.decodes("tool", b.Tool, b.subject.Kind.Tool),
	}
	checks = append(checks, b.connectsToNothing()...)
	return append(checks,
		b.refusesUnknown("unknown setting", func(c *Counterpart) *string { return &c.Settings }),
		b.refusesUnknown("unknown setting of a tool", func(c *Counterpart) *string { return &c.Tool }),
		b.complainsDiscreetly("broken settings", func(c *Counterpart) *string { return &c.Settings }),
		b.complainsDiscreetly("broken tool", func(c *Counterpart) *string { return &c.Tool }),
	)
}

// decodes checks that the published type of a block can decode it.
func (b *bench) decodes(name, text string, shape any) Check {
	if shape == nil {
		return found(name+" shape", false, "nil", "a zero value of the block", "without it the configuration schema does not know the block")
	}
	err := Block(text).Decode(reflect.New(reflect.TypeOf(shape)).Interface())
	return found(name+" shape", err == nil, words(err, "decoded"), "what the counterpart's block says", "Kind must name the type that New decodes")
}

func (b *bench) connectsToNothing() []Check {
	if b.subject.Cannot[Unreachable] == "" {
		b.Enter(Unreachable)
	}
	err := b.build(b.subject.patience())
	checks := []Check{
		found("built while nothing listens", err == nil, words(err, "built"), "an adapter", "connect at the first Dispatch; drainer config validate builds every adapter"),
		found("connects to nothing", b.network.dials.Load() == 0, fmt.Sprintf("%d connections tried", b.network.dials.Load()), "none", "connect at the first Dispatch"),
	}
	if err != nil {
		return checks
	}
	b.Enter(Answering)
	return append(checks, b.recovery(), closed(b.close()), left(b.owner.awaitNone(b.subject.soon())))
}

// with builds an adapter from blocks, one of which was changed, and closes the adapter.
func (b *bench) with(choose func(*Counterpart) *string, text string) error {
	changed := &bench{Counterpart: b.Counterpart, subject: b.subject, network: &network{}, owner: newOwner(), run: b.run}
	*choose(&changed.Counterpart) = text
	if err := changed.build(b.subject.patience()); err != nil {
		return err
	}
	return changed.close()
}

func (b *bench) refusesUnknown(name string, choose func(*Counterpart) *string) Check {
	const expected, advice = "an error", "decode every block strictly, even an empty one"
	fields, err := fieldsOf(*choose(&b.Counterpart))
	if err != nil {
		return found(name, false, "the counterpart's block is no mapping", expected, "")
	}
	fields["no_such_field_5f1c"] = canary
	err = b.with(choose, written(fields))
	return found(name, err != nil, words(err, "accepted"), expected, advice)
}

// complainsDiscreetly replaces one value after the other by a canary. New may accept it. Otherwise its error must
// not repeat the value.
func (b *bench) complainsDiscreetly(name string, choose func(*Counterpart) *string) Check {
	const expected = "errors that repeat no value"
	fields, err := fieldsOf(*choose(&b.Counterpart))
	if err != nil {
		return found(name, false, "the counterpart's block is no mapping", expected, "")
	}
	broken, indiscreet := 0, 0
	eachBroken(fields, func() {
		broken++
		err := b.with(choose, written(fields))
		if err != nil && containsAny(err.Error(), append([]string{canary}, b.Secrets...)) {
			indiscreet++
		}
	})
	return found(name, indiscreet == 0, fmt.Sprintf("%d blocks broken, %d values repeated", broken, indiscreet), expected, "name the field, and what is wrong with it; wrapped errors of parsers repeat their input")
}

// eachBroken replaces one scalar after the other by each canary, and calls try each time.
func eachBroken(value any, try func()) {
	replace := func(part any, set func(any)) {
		switch part.(type) {
		case map[string]any, []any:
			eachBroken(part, try)
		default:
			for _, canary := range canaries {
				set(canary)
				try()
			}
			set(part)
		}
	}
	switch value := value.(type) {
	case map[string]any:
		for name, part := range value {
			replace(part, func(now any) { value[name] = now })
		}
	case []any:
		for i, part := range value {
			replace(part, func(now any) { value[i] = now })
		}
	}
}

// fieldsOf returns a map that is not nil, even for an empty block.
func fieldsOf(text string) (map[string]any, error) {
	fields := map[string]any{}
	err := yaml.Unmarshal([]byte(text), &fields)
	if fields == nil {
		fields = map[string]any{}
	}
	return fields, err
}

// written returns JSON, which is also YAML and needs no rules for quotes.
func written(fields map[string]any) string {
	text, err := json.Marshal(fields)
	if err != nil {
		return ""
	}
	return string(text)
}

// words returns the text of an error of New, which must repeat no value.
func words(err error, otherwise string) string {
	if err == nil {
		return otherwise
	}
	return err.Error()
}

// adapterOutcomes are the outcomes that an adapter may report. Only the engine reports the others.
var adapterOutcomes = []dispatch.Outcome{
	dispatch.Completed, dispatch.NotSent, dispatch.Throttled, dispatch.Rejected, dispatch.CredentialsRefused, dispatch.Forbidden,
	dispatch.Absent, dispatch.Ambiguous, dispatch.InFlight,
}

// strangeRequests sends requests that no agent should make, but some will. Every outcome of an adapter is right. A
// panic is not.
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
	named := seen.ended(dispatch.NotSent) && seen.Result.ErrorClass == "unconfigured_tool"
	return found("unknown operation", named, seen.String(), "not_sent, unconfigured_tool", "an operation that is not configured is never sent, and the class leads to what helps")
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

const deep = 9000 // encoding/json accepts 10,000 levels

type document struct {
	name     string
	document json.RawMessage
}

// strangePayloads makes the payloads at each call, because this package is part of the daemon.
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

// strangeTexts can all be a part of a tuple.
var strangeTexts = []struct{ name, text string }{
	{"line ends", "a\r\nX-Injected: 1\r\n\r\nb"},
	{"unicode", "ключ 鍵 🔑 \u202e\ufeff é"},
	{"255 bytes", strings.Repeat("k", dispatch.MaxPartBytes)},
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

// reword replaces all texts of a document, so that the payload keeps its form and has strange values.
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
