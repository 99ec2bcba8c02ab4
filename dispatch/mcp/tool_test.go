package mcp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// A payload arrives as the arguments of the call, each number exact.
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

// arguments are those of the call as it is written.
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
