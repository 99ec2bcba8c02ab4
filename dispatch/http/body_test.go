package http

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// A payload arrives as it was enqueued: octet for octet where nothing is to be
// changed, and else with every number exact and every other field untouched.
func FuzzABodyCarriesThePayloadExactly(f *testing.F) {
	for _, seed := range []string{
		`{}`, ` { "b": 1.0, "a": 9007199254740993 } `, `{"a": 1, "a": 9007199254740993}`, `{"n": 123456789012345678901234567890, "m": -1e400}`,
		`{"s": "\u0000\ud800\ud83d\ude00", "\u0000": "\\"}`, `{"key": 1}`, `{"k\u0065y": 1}`, `[{"a": {"b": [1, [2.50], null, true]}}]`,
		`{"metadata": {"order": [1e2, {"x]": "&="}]}, "e": {}}`, strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200),
		`"text"`, `null`, "1e99999999999999999999", "\ufeff{}", "{\"\xff\": \"\xff\"}",
	} {
		f.Add([]byte(seed))
	}
	mapped := newEncodingTool(f, "map: .payload")
	f.Fuzz(func(t *testing.T, payload []byte) {
		if !json.Valid(payload) {
			return
		}
		if body, err := encodeJSON(payload, nil, field{}); err != nil || !bytes.Equal(body, payload) {
			t.Errorf("%q is sent as %q, %v", payload, body, err)
		}
		if body, err := mapped.written(t, payload); err != nil || !dispatchtest.SameJSON(body, payload) {
			t.Errorf("%q is mapped to %q, %v", payload, body, err)
		}
		checkKeyField(t, payload)
		checkForm(t, payload)
	})
}

func checkKeyField(t *testing.T, payload []byte) {
	t.Helper()
	var fields map[string]json.RawMessage
	isObject := json.Unmarshal(payload, &fields) == nil && fields != nil
	_, taken := fields["key"]
	body, err := encodeJSON(payload, nil, field{"key", "idem_v1_1"})
	if (err == nil) != (isObject && !taken) {
		t.Errorf("%q with a key: %q, %v", payload, body, err)
	}
	if err != nil {
		return
	}
	fields["key"] = json.RawMessage(`"idem_v1_1"`)
	want, err := json.Marshal(fields)
	if err != nil || !dispatchtest.SameJSON(body, want) {
		t.Errorf("%q with a key is sent as %q", payload, body)
	}
}

func checkForm(t *testing.T, payload []byte) {
	t.Helper()
	body, err := encodeForm(payload, nil, field{})
	if err != nil {
		return
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for name, values := range form {
		for _, value := range values {
			got = append(got, name+"="+value)
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		t.Fatal(err)
	}
	for name, inner := range value.(map[string]any) {
		want = append(want, leavesOf(name, inner)...)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%q is sent as %q, want %q", payload, got, want)
	}
}

func leavesOf(name string, value any) (leaves []string) {
	switch value := value.(type) {
	case map[string]any:
		for inner, value := range value {
			leaves = append(leaves, leavesOf(name+"["+inner+"]", value)...)
		}
	case []any:
		for i, value := range value {
			leaves = append(leaves, leavesOf(name+"["+strconv.Itoa(i)+"]", value)...)
		}
	case string:
		leaves = []string{name + "=" + value}
	case json.Number:
		leaves = []string{name + "=" + value.String()}
	case bool:
		leaves = []string{name + "=" + strconv.FormatBool(value)}
	case nil:
		leaves = []string{name + "="}
	}
	return leaves
}

type encodingTool struct{ *tool }

func newEncodingTool(t testing.TB, settings string) encodingTool {
	t.Helper()
	adapter, err := New(dispatch.Spec{
		Settings: text("base_url: http://localhost"),
		Tools:    map[string]dispatch.ToolSpec{"act": {Class: dispatch.NonIdempotent, Settings: text("{path: /, " + settings + "}")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return encodingTool{adapter.tools["act"]}
}

func (e encodingTool) written(t *testing.T, payload []byte) ([]byte, error) {
	t.Helper()
	request, err := e.render(t.Context(), dispatch.Request{Payload: payload})
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	_, err = body.ReadFrom(request.Body)
	return body.Bytes(), err
}
