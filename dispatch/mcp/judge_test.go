package mcp

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// toolWith returns a tool with these settings. Its server is a program that is never started.
func toolWith(t testing.TB, settings string) *tool {
	t.Helper()
	adapter, err := New(dispatch.Spec{
		Settings: dispatchtest.Block("{command: [never], max_response_body: 4096}"),
		Tools:    map[string]dispatch.ToolSpec{"act": {Class: dispatch.ReadOnly, Settings: dispatchtest.Block(settings)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return adapter.tools["act"]
}

// No answer of a server is taken for more than it proves, whatever bytes it has.
func FuzzNoAnswerIsTakenForMoreThanItProves(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\u0000\ud800"}],"isError":true}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"content":null,"isError":null,"structuredContent":{"id":9007199254740993}}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":"false"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"content":[],"ISERROR":true}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"content":[],"resultType":"accepted"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"content":[],"inputRequests":{"a":{}}}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"content":7,"_meta":{"io.github.agentoutbox/replayed":true}}}`,
		`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":1,"result":null}`, `{"jsonrpc":"2.0","id":1,"result":[]}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"` + strings.Repeat("é", 1500) + `","data":[1e400]}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"duplicate"}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":""},"result":{"content":[]}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"structuredContent":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}}`,
	} {
		for rules := range 3 {
			f.Add([]byte(seed), byte(rules), 0)
			f.Add([]byte(seed), byte(rules), 200)
			f.Add([]byte(seed), byte(rules), 404)
		}
	}
	tools := []*tool{
		toolWith(f, `{response: {ref: .structured.id}}`),
		toolWith(f, `{response: {is_error: rejected, rules: [{when: '.text == "" and .code == null', outcome: absent}]}}`),
		toolWith(f, `{response: {rules: [{when: '.code == -32000', outcome: completed}, {when: '.structured.wait > 1', outcome: throttled}]}}`),
	}
	f.Fuzz(func(t *testing.T, said []byte, rules byte, status int) {
		message, err := jsonrpc.DecodeMessage(said)
		response, isResponse := message.(*jsonrpc.Response)
		if err != nil || !isResponse {
			return
		}
		judging := tools[int(rules)%len(tools)]
		got := judging.judge(t.Context(), callEvidence{sent: true, status: status, inSession: true, answer: response}, hints{})

		var members map[string]any
		_ = json.Unmarshal(response.Result, &members)
		hasRules := len(judging.reading.Rules) > 0
		switch completed := got.Outcome == dispatch.Completed; {
		case !slices.Contains(outcomes, got.Outcome):
			t.Errorf("%s is none of an adapter's outcomes", got.Outcome)
		case completed && (status == 408 || status == 425 || status == 429 || status >= 500):
			t.Errorf("a %d completed it", status)
		case completed && response.Error != nil && !hasRules:
			t.Errorf("%s completed it", said)
		case completed && !hasRules && (members["isError"] == true || members["content"] == nil && !has(members, "content") && members["structuredContent"] == nil):
			t.Errorf("%s completed it", said)
		case got.Outcome == dispatch.Absent && response.Error != nil:
			t.Errorf("%s proved absence", said)
		case got.Final && got.Outcome != dispatch.Ambiguous:
			t.Errorf("%s is final", got.Outcome)
		case completed != (got.ErrorClass == "") || got.ErrorClass != "" && !className.MatchString(got.ErrorClass):
			t.Errorf("%s with error class %q", got.Outcome, got.ErrorClass)
		case got.Response != nil && !json.Valid(got.Response):
			t.Errorf("what is kept is no JSON: %q", got.Response)
		case got.Problem != nil && (got.Problem.Detail == "" || !utf8.ValidString(got.Problem.Detail) || strings.Contains(got.Problem.Detail, "\x00")):
			t.Errorf("the problem %q", got.Problem.Detail)
		}
	})
}

// outcomes are the outcomes that an adapter may find in an answer.
var outcomes = []dispatch.Outcome{
	dispatch.Completed, dispatch.Throttled, dispatch.Rejected, dispatch.CredentialsRefused, dispatch.Forbidden, dispatch.InFlight, dispatch.Ambiguous, dispatch.Absent,
}

var className = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

func has(members map[string]any, name string) bool {
	_, is := members[name]
	return is
}

// For any stream of a server, the library gets whole and valid events and then an end. The guard reads little
// ahead. Only an answer to this call ends the stream.
func FuzzAStreamAnswersItsOwnCallAlone(f *testing.F) {
	const answer = `data: {"jsonrpc":"2.0","id":7,"result":{"content":[]}}`
	for _, seed := range []string{
		"", "\n", "\r\n\r\n", answer, answer + "\n", answer + "\n\n", "event: message\r\nid: 1\r\n" + answer + "\r\n\r\n",
		strings.Replace(answer, "7", "8", 1) + "\n\n" + answer + "\n\n", strings.Replace(answer, "7", `"7"`, 1) + "\n\n",
		"event: other\n" + strings.Replace(answer, "7", "8", 1) + "\n\n" + answer + "\n\n",
		"event: other\nevent: message\n" + strings.Replace(answer, "7", "8", 1) + "\n\n",
		"data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":7,\"result\":{}}\n\n", ": comment\nretry: 1\n\n" + answer + "\n\n", "no colon\n\n" + answer + "\n\n",
		"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n" + answer + "\n\n", "data: " + strings.Repeat("x", 2000) + "\n\n" + answer + "\n\n",
		strings.Repeat("data:\n", 500) + "\n", answer + "\n\n" + strings.Replace(answer, "[]", "[1]", 1) + "\n\n", "data: \x00\xff\n\n",
	} {
		f.Add([]byte(seed))
	}
	own, err := jsonrpc.MakeID(7.0)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		const limit, readAhead = 1024, 4096
		c := &call{}
		c.number(own)
		server := &counted{from: bytes.NewReader(said)}
		stream := guard(t.Context(), io.NopCloser(server), c, limit)
		var passed []byte
		for raw := make([]byte, 100); ; {
			n, err := stream.Read(raw)
			passed = append(passed, raw[:n]...)
			if server.count > len(passed)+limit+2*readAhead {
				t.Fatalf("%d bytes were read of which %d are passed on", server.count, len(passed))
			}
			if err != nil {
				break
			}
		}
		if !bytes.HasPrefix(said, passed) || len(passed) > 0 && !bytes.HasSuffix(passed, []byte("\n")) {
			t.Errorf("%q is passed on as %q", said, passed)
		}
		if again, err := stream.Read(make([]byte, 1)); again != 0 || err == nil {
			t.Error("there is more behind the end")
		}
		answered := false
		for _, data := range messagesIn(passed) {
			message, err := jsonrpc.DecodeMessage(data)
			if err != nil {
				t.Errorf("%q is passed on", data)
			}
			if response, is := message.(*jsonrpc.Response); is {
				answered = true
				if response.ID != own {
					t.Errorf("an answer to another call is passed on: %q", data)
				}
			}
		}
		if c.hasAnswer() != answered && c.seen.class == "" {
			t.Errorf("%q: answered is %t", said, c.hasAnswer())
		}
	})
}

// messagesIn returns the data of the events that carry messages.
func messagesIn(stream []byte) (messages [][]byte) {
	for _, event := range strings.Split(strings.ReplaceAll(string(stream), "\r\n", "\n"), "\n\n") {
		kind, data := "message", ""
		for line := range strings.Lines(event) {
			name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
			switch name {
			case "event":
				kind = strings.TrimSpace(value)
			case "data":
				data += strings.TrimSpace(value) + "\n"
			}
		}
		if kind == "message" && strings.TrimSpace(data) != "" {
			messages = append(messages, []byte(data))
		}
	}
	return messages
}

// counted counts the bytes that were read from it.
type counted struct {
	from  io.Reader
	count int
}

func (c *counted) Read(raw []byte) (int, error) {
	n, err := c.from.Read(raw)
	c.count += n
	return n, err
}

// A payload arrives as the arguments of the call, and each number is exact.
func FuzzArgumentsCarryThePayloadExactly(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"n": 9007199254740993, "m": 1.0, "z": 1e400}`, `{"a": 1, "a": 9007199254740993}`, `{"key": 1}`, `{"k\u0065y": null}`, `{"s": "<&>\u2028\u0000\ud800"}`,
		`[]`, `null`, `"text"`, `{`, "{\"\xff\": 1}", strings.Repeat(`{"a":`, 600) + "1" + strings.Repeat("}", 600),
	} {
		f.Add([]byte(seed))
	}
	plain, mapped, keyed := toolWith(f, "{}"), toolWith(f, "{arguments: .payload}"), toolWith(f, "{key_argument: key}")
	f.Fuzz(func(t *testing.T, payload []byte) {
		var members map[string]json.RawMessage
		isObject := json.Unmarshal(payload, &members) == nil && members != nil
		for _, tool := range []*tool{plain, mapped} {
			if got, sent := arguments(t, tool, payload); sent != isObject || sent && !dispatchtest.SameJSON(got, payload) {
				t.Errorf("%q is sent as %q", payload, got)
			}
		}
		_, taken := members["key"]
		got, sent := arguments(t, keyed, payload)
		if sent != (isObject && !taken) {
			t.Errorf("%q with a key is sent as %q", payload, got)
		}
		if !sent {
			return
		}
		members["key"] = json.RawMessage(`"idem_v1_1"`)
		want, err := json.Marshal(members)
		if err != nil || !dispatchtest.SameJSON(got, want) {
			t.Errorf("%q with a key is sent as %q", payload, got)
		}
	})
}

// arguments returns the arguments of the call as it is written.
func arguments(t *testing.T, tool *tool, payload []byte) (_ json.RawMessage, sent bool) {
	t.Helper()
	params, err := tool.render(t.Context(), dispatch.Request{IdempotencyKey: "idem_v1_1", Payload: payload})
	if err != nil {
		return nil, false
	}
	written, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	var read struct{ Arguments json.RawMessage }
	if err := json.Unmarshal(written, &read); err != nil {
		t.Fatal(err)
	}
	return read.Arguments, true
}

// BePatient sets how long the adapter waits for an answer to server/discover.
func (a *Adapter) BePatient(patience time.Duration) { a.patience = patience }
