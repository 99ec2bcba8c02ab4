package mcp

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/agentoutbox/drainer/dispatch"
)

type text string

func (b text) Decode(into any) error {
	return yaml.UnmarshalWithOptions([]byte(b), into, yaml.Strict())
}

// toolWith has these settings; the server is a program that is never started.
func toolWith(t testing.TB, settings string) *tool {
	t.Helper()
	adapter, err := New(dispatch.Spec{
		Settings: text("{command: [never], max_response_body: 4096}"),
		Tools:    map[string]dispatch.ToolSpec{"act": {Class: dispatch.ReadOnly, Settings: text(settings)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return adapter.tools["act"]
}

// What a server answers is taken for no more than it says, whatever it is made of.
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
		got := judging.judge(t.Context(), evidence{sent: true, status: status, inSession: true, answer: response}, hints{})

		var members map[string]any
		_ = json.Unmarshal(response.Result, &members)
		hasRules := len(judging.rules) > 0
		switch completed := got.Outcome == dispatch.Completed; {
		case !slices.Contains(ruleOutcomes, got.Outcome):
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
		case got.Problem != nil && (got.Problem.Detail == "" || utf8.RuneCountInString(got.Problem.Detail) > maxProblemDetail || strings.Contains(got.Problem.Detail, "\x00")):
			t.Errorf("the problem %q", got.Problem.Detail)
		}
	})
}

func has(members map[string]any, name string) bool {
	_, is := members[name]
	return is
}
