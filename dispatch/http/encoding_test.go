package http

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/url"
	slashed "path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// A payload arrives as it was enqueued. It is the same bytes if the body needs no change. Otherwise every number is
// exact and every other field is untouched.
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
	taken := slices.ContainsFunc(slices.Collect(maps.Keys(fields)), func(name string) bool { return sameField(name, "key") })
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
		Settings: dispatchtest.Block("base_url: http://localhost"),
		Tools:    map[string]dispatch.ToolSpec{"act": {Class: dispatch.NonIdempotent, Settings: dispatchtest.Block("{path: /, " + settings + "}")}},
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

// A retry has the same key, so it must have the same bytes.
func TestAFormIsTheSameBytesEachTimeThoughTwoFieldsShareAName(t *testing.T) {
	t.Parallel()
	payload := json.RawMessage(`{"a[b]":1,"a":{"b":2,"c":{"d":3},"c[d]":4},"z":[{"y":5}],"z[0][y]":6}`)
	want, err := encodeForm(payload, nil, field{})
	if err != nil {
		t.Fatal(err)
	}
	fault.Injected(t, 73, 200)
	for range 200 {
		if got, err := encodeForm(payload, nil, field{}); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s, then %s, %v", want, got, err)
		}
	}
}

func TestAFieldThatAServerMayTakeForTheKeyIsRefused(t *testing.T) {
	t.Parallel()
	key := field{"request_id", "idem_v1_1"}
	for _, name := range []string{"request_id", "Request_Id", "REQUEST_ID", "requestId", "request-id", "Request-ID"} {
		payload := json.RawMessage(`{"a":1,"` + name + `":"forged"}`)
		if body, err := encodeJSON(payload, nil, key); err == nil {
			t.Errorf("JSON: %s", body)
		}
		if body, err := encodeForm(payload, nil, key); err == nil {
			t.Errorf("form: %s", body)
		}
	}
	for _, payload := range []string{`{"request_id[0]":"forged"}`, `{"Request_Id":["forged"]}`, `{"request_id":{"a":"forged"}}`} {
		if body, err := encodeForm(json.RawMessage(payload), nil, key); err == nil {
			t.Errorf("form: %s", body)
		}
	}
	if _, err := encodeJSON(json.RawMessage(`{"request":1,"id":2}`), nil, key); err != nil {
		t.Errorf("other names: %v", err)
	}
}

var keyShapes = map[string]*regexp.Regexp{
	"opaque": regexp.MustCompile(`^[a-z0-9_]+$`),
	"quoted": regexp.MustCompile(`^"[a-z0-9_]+"$`),
	"uuid":   regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`),
}

// For any tuple, the key is a valid header value of a length that the provider takes, and another tuple has another
// key. The header with the tuple can be read back.
func FuzzAKeyFitsItsPlace(f *testing.F) {
	for _, part := range []string{"run", "", "a,b", "%2C", "\r\nX-Evil: 1", "\x00", "é\u2028", "\xff", strings.Repeat("x", 300)} {
		for _, length := range []int{0, 24, 26, 36, 40, -1, 1 << 40} {
			f.Add(part, "other", length)
		}
	}
	f.Fuzz(func(t *testing.T, run, other string, maxLength int) {
		tuple := dispatch.Tuple{AgentRunID: run, StepID: "step", ToolName: "p/" + other, BusinessScope: run + other}
		another := tuple
		another.AgentRunID = other
		for name, shape := range keyShapes {
			format, err := keyFormat(name, maxLength)
			if err != nil {
				continue
			}
			key := format(tuple.IdempotencyKey())
			if !shape.MatchString(key) || maxLength > 0 && len(key) > maxLength {
				t.Errorf("%s, at most %d: %q", name, maxLength, key)
			}
			if (key == format(another.IdempotencyKey())) != (run == other) {
				t.Errorf("%s, at most %d: %q and %q have the key %q", name, maxLength, tuple, another, key)
			}
		}
		header := tupleOf(tuple)
		if !httpguts.ValidHeaderFieldValue(header) || !isASCII(header) {
			t.Errorf("%q is no header value", header)
		}
		parts := strings.Split(header, ",")
		for i, part := range parts {
			parts[i], _ = url.PathUnescape(part)
		}
		if want := []string{tuple.AgentRunID, tuple.StepID, tuple.ToolName, tuple.BusinessScope}; !slices.Equal(parts, want) {
			t.Errorf("%q is read as %q, want %q", header, parts, want)
		}
	})
}

func isASCII(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// For any value from an agent, a request goes to the configured host, below the configured path, and the value
// arrives as one segment.
func FuzzAValueStaysInItsSegment(f *testing.F) {
	templates := []string{"/charges/{.payload}", "/a/{.payload}/b", "/a/x{.payload}", "/{.payload}.json/c"}
	for _, seed := range []string{
		"ch_1", "", ".", "..", "../..", "..%2f..", `..\..`, "%2e%2e", "a/b", "a?b=c", "a#b", "//evil.example/", "@evil.example", ":80",
		"\r\nHost: evil.example", "\x00", "\xff", "é", "a;b=c", ". .", "...", " ", "/", "\u2215..\u2215", strings.Repeat("../", 100),
	} {
		for template := range templates {
			f.Add(byte(template), seed)
		}
	}
	base, err := url.Parse("https://api.example:8443/v1/root/")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, template byte, value string) {
		text := templates[int(template)%len(templates)]
		parsed, err := parsePath(text)
		if err != nil {
			t.Fatal(err)
		}
		target, err := parsed.below(t.Context(), base, map[string]any{"payload": value})
		if err != nil {
			return
		}
		read, err := url.Parse(target.String())
		if err != nil || read.Scheme != base.Scheme || read.Host != base.Host || read.User != nil || read.RawQuery != "" || read.Fragment != "" {
			t.Fatalf("%q becomes %q, %v", value, target, err)
		}
		before, after, _ := strings.Cut("/v1/root"+text, "{.payload}")
		escaped, begins := strings.CutPrefix(read.EscapedPath(), before)
		escaped, ends := strings.CutSuffix(escaped, after)
		arrived, err := url.PathUnescape(escaped)
		if !begins || !ends || strings.Contains(escaped, "/") || err != nil || arrived != value {
			t.Errorf("%q becomes %q", value, target)
		}
		if strings.Contains(strings.ToLower(arrived), "%2f") || strings.ContainsAny(arrived, `/\`) {
			t.Errorf("%q reaches the path as %q: a server that decodes before it splits finds more segments", value, escaped)
		}
		if seen := slashed.Clean(strings.ReplaceAll(read.Path, `\`, "/")); !strings.HasPrefix(seen+"/", slashed.Dir(before)+"/") {
			t.Errorf("%q climbs to %q", value, seen)
		}
	})
}
