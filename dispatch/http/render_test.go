package http_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

type seen struct {
	line, body string
	header     http.Header
}

// dispatchOnce returns the request that arrived at the provider, or nil if none did, and the result.
func dispatchOnce(t *testing.T, settings, tool string, request dispatch.Request) (*seen, dispatch.Result) {
	t.Helper()
	var arrived *seen
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		arrived = &seen{r.Method + " " + r.RequestURI, string(body), r.Header}
	}))
	result := newAdapter(t, spec(baseURL+"/base", settings, tool)).Dispatch(t.Context(), request)
	return arrived, result
}

// arrival returns the header of the request that arrived at the provider.
func arrival(t *testing.T, settings string, tool dispatch.ToolSpec) http.Header {
	t.Helper()
	var arrived http.Header
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { arrived = r.Header }))
	spec := spec(baseURL, settings, "")
	spec.Tools["charge"] = tool
	if got := newAdapter(t, spec).Dispatch(t.Context(), request(`{}`)); arrived == nil {
		t.Fatalf("nothing arrived: %+v", got)
	}
	return arrived
}

func TestARequestIsRendered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ settings, tool, payload, line, body string }{
		"payload byte for byte": {"", "{path: /c}", `{"b": 1.0, "a":9007199254740993,"a":2}`, "POST /base/c", `{"b": 1.0, "a":9007199254740993,"a":2}`},
		"mapped, big integers":  {"", `{path: /c, map: "{amount: .payload.n, run: .agent_run_id}"}`, `{"n":9007199254740993}`, "POST /base/c", `{"amount":9007199254740993,"run":"run-001"}`},
		"form":                  {"", "{path: /c, body: form}", `{"amount":5,"metadata":{"k":"a b"},"items":["x",true],"none":null}`, "POST /base/c", "amount=5&items%5B0%5D=x&items%5B1%5D=true&metadata%5Bk%5D=a+b&none="},
		"mapped form":           {"", `{path: /c, body: form, map: "{amount: .payload.n}"}`, `{"n":5}`, "POST /base/c", "amount=5"},
		"path value":            {"", "{path: '/c/{.payload.id}/x'}", `{"id":"ab?c#d é"}`, "POST /base/c/ab%3Fc%23d%20%C3%A9/x", `{"id":"ab?c#d é"}`},
		"jq braces in path":     {"", `{path: '/c/{{x}}/{ {a: .payload.id} | .a }'}`, `{"id":7}`, "POST /base/c/{x}/7", `{"id":7}`},
		"query":                 {"", "{path: /c, method: GET, query: {q: '{.payload.q}', fixed: '1'}}", `{"q":"a&b=c"}`, "GET /base/c?fixed=1&q=a%26b%3Dc", ""},
		"key in query":          {"idempotency_key: {query: request_id}", "{path: /c, body: none}", `{}`, "POST /base/c?request_id=" + request("").IdempotencyKey, ""},
		"key in JSON":           {"idempotency_key: {field: ik}", "{path: /c}", ` {"b": 2}`, "POST /base/c", `{"ik":"` + request("").IdempotencyKey + `","b": 2}`},
		"key in empty JSON":     {"idempotency_key: {field: ik}", "{path: /c}", `{}`, "POST /base/c", `{"ik":"` + request("").IdempotencyKey + `"}`},
		"key in form":           {"idempotency_key: {field: ik}", "{path: /c, body: form}", `{"z":1}`, "POST /base/c", "ik=" + request("").IdempotencyKey + "&z=1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, result := dispatchOnce(t, test.settings, test.tool, request(test.payload))
			if arrived == nil {
				t.Fatalf("nothing arrived: %+v", result)
			}
			if arrived.line != test.line && strings.NewReplacer("%7B", "{", "%7D", "}").Replace(arrived.line) != test.line {
				t.Errorf("line %s, want %s", arrived.line, test.line)
			}
			if arrived.body != test.body {
				t.Errorf("body %s, want %s", arrived.body, test.body)
			}
		})
	}
}

func TestAPayloadThatCannotBeRenderedIsRejectedUnsent(t *testing.T) {
	t.Parallel()
	const unsafe = "a path segment would be empty, climb the path or hold a slash"
	const keyTaken = "the body is no object, or already has the field of the idempotency key"
	for name, test := range map[string]struct{ settings, tool, payload, setting, why string }{
		"climbing segment":         {"", "{path: '/c/{.payload.id}'}", `{"id":".."}`, "path", unsafe},
		"climb after decoding":     {"", "{path: '/c/{.payload.id}'}", `{"id":"../../admin"}`, "path", ".payload.id: " + unsafe},
		"climb with backslash":     {"", "{path: '/c/{.payload.id}'}", `{"id":"..\\admin"}`, "path", ".payload.id: " + unsafe},
		"climb in two halves":      {"", "{path: '/c/.{.payload.id}'}", `{"id":"."}`, "path", unsafe},
		"empty segment":            {"", "{path: '/c/{.payload.id}'}", `{"id":""}`, "path", unsafe},
		"missing value":            {"", "{path: '/c/{.payload.id}'}", `{}`, "path", ".payload.id: gives null where text belongs; .payload.id is null"},
		"object in path":           {"", "{path: '/c/{.payload}'}", `{}`, "path", ".payload: gives an object where text belongs; .payload is an object"},
		"header injection":         {"", "{path: /c, headers: {X-A: '{.payload.a}'}}", `{"a":"x\r\nHost: evil"}`, "headers.X-A", "a header value holds a control character"},
		"two results":              {"", "{path: /c, map: '.payload[]'}", `[1,2]`, "map", ".payload[]: jq gave no result, or more than one; .payload is an array"},
		"a text to calculate with": {"", "{path: /c, map: '{n: (.payload.n | tonumber), m: .payload.m}'}", `{"n":"a secret","m":1}`, "map", "{n: (.payload.n | tonumber), m: .payload.m}: tonumber does not take this value; .payload.n is a string, .payload.m is a number"},
		"a sum of two kinds":       {"", "{path: /c, map: '{n: (.payload.m + .payload.n)}'}", `{"n":"a secret","m":{}}`, "map", "{n: (.payload.m + .payload.n)}: cannot add an object; .payload.m is an object, .payload.n is a string"},
		"a list that is none":      {"", "{path: /c, map: '[.payload.items[] | .id]'}", `{}`, "map", "[.payload.items[] | .id]: cannot iterate over null; .payload.items is null"},
		"an error of its own":      {"", "{path: /c, map: '.payload.n | error'}", `{"n":"a secret"}`, "map", ".payload.n | error: it calls error; .payload.n is a string"},
		"form of an array":         {"", "{path: /c, body: form}", `[]`, "body", "a form body needs an object, and this is an array"},
		"agent sets the key field": {"idempotency_key: {field: ik}", "{path: /c}", `{"ik":"mine"}`, "body", keyTaken},
		"agent sets the parameter": {"idempotency_key: {field: ik}", "{path: /c, body: form}", `{"ik":"mine"}`, "body", keyTaken},
		"no text in the query":     {"", "{path: /c, method: GET, query: {q: '{.payload.q}'}}", `{"q":{}}`, "query.q", ".payload.q: gives an object where text belongs; .payload.q is an object"},
		"no JSON":                  {"", "{path: '/c/{.payload.id}'}", `{`, "payload", "it cannot be read"},
		"key field in an array":    {"idempotency_key: {field: ik}", "{path: /c}", `[1]`, "body", keyTaken},
		"key field in null":        {"idempotency_key: {field: ik}", "{path: /c}", `null`, "body", keyTaken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, result := dispatchOnce(t, test.settings, test.tool, request(test.payload))
			if arrived != nil || result.Outcome != dispatch.Rejected || result.ErrorClass != "unrenderable_request" {
				t.Errorf("arrived %v, result %+v", arrived, result)
			}
			if p := result.Problem; p == nil || p.Title != test.setting+" cannot be rendered" || p.Detail != test.why {
				t.Errorf("it says %+v, want %s: %s", p, test.setting, test.why)
			}
		})
	}
}

// Another try would end in the same way, on each machine. These expressions are refused before they build a value,
// so a slow machine refuses them too. Package jq tests the refusal after many steps.
func TestAPayloadThatAnExpressionBlowsUpIsRefused(t *testing.T) {
	t.Parallel()
	for _, expression := range []string{".payload.s * .payload.n", "{a: (.payload.n * .payload.s)}", "null | setpath([400000000]; 1)"} {
		arrived, result := dispatchOnce(t, "", "{path: /c, map: '"+expression+"'}", request(`{"s": "x", "n": 400000000}`))
		if arrived != nil || result.Outcome != dispatch.Rejected || result.ErrorClass != "unrenderable_request" || result.Overloaded() {
			t.Errorf("%s: arrived %v, result %+v", expression, arrived, result)
		}
	}
}

func TestAKeyWithoutDigitsStaysItself(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"order-7", "idem_v1_00", "idem_v1_0123456789abcdef0123456789abcdeg"} {
		own := request(`{}`)
		own.IdempotencyKey = key
		arrived, _ := dispatchOnce(t, "idempotency_key: {format: uuid}", "{path: /}", own)
		if got := arrived.header.Get("Idempotency-Key"); got != key {
			t.Errorf("%s became %s", key, got)
		}
	}
}

func TestALookupIsToldTheReference(t *testing.T) {
	t.Parallel()
	const tool = "{method: GET, path: '/c/{.provider_ref}'}"
	known := request(`{}`)
	known.ProviderRef = "ch_1"
	if arrived, result := dispatchOnce(t, "", tool, known); arrived == nil || arrived.line != "GET /base/c/ch_1" {
		t.Errorf("arrived %v, result %+v", arrived, result)
	}
	if arrived, result := dispatchOnce(t, "", tool, request(`{}`)); arrived != nil || result.ErrorClass != "unrenderable_request" {
		t.Errorf("without a reference arrived %v, result %+v", arrived, result)
	}
}

func TestHeadersAreSent(t *testing.T) {
	t.Parallel()
	traced := request(`{"who":"me"}`)
	traced.Headers = map[string]string{"traceparent": "00-ab", "Tracestate": "s=1", "baggage": "b=1", "authorization": "forged", "cookie": "c"}
	traced.Tuple.BusinessScope = "a,b/c"
	arrived, _ := dispatchOnce(t,
		"headers: {Authorization: Bearer s3cret}\nidempotency_key: {tuple_header: true}",
		"{path: /, headers: {X-Who: '{.payload.who}'}}", traced)
	for name, want := range map[string]string{
		"Authorization": "Bearer s3cret", "X-Who": "me", "Traceparent": "00-ab", "Tracestate": "s=1", "Baggage": "b=1", "Cookie": "",
		"Idempotency-Key": request("").IdempotencyKey, "Content-Type": "application/json", "User-Agent": "drainer",
		"X-Agent-Idempotency-Tuple": "run-001,step-1,stripe%2Fcharge,a%2Cb%2Fc",
	} {
		if got := arrived.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// The requests of one tool share the parts that they have in common.
func TestWhatOneIntentBringsStaysOutOfTheNext(t *testing.T) {
	t.Parallel()
	var arrived []http.Header
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { arrived = append(arrived, r.Header) }))
	settings := "headers: {Baggage: ours, Tracestate: ''}\nidempotency_key: {header: X-Key}"
	adapter := newAdapter(t, spec(baseURL, settings, "{path: /, headers: {X-Who: '{.payload.who}'}}"))
	first := request(`{"who":"me"}`)
	first.IdempotencyKey = "first"
	first.Headers = map[string]string{"traceparent": "00-ab", "tracestate": "s=1", "baggage": "theirs"}
	second := request(`{"who":"you"}`)
	second.IdempotencyKey = "second"
	for _, request := range []dispatch.Request{first, second} {
		adapter.Dispatch(t.Context(), request)
	}
	for name, want := range map[string][2]string{
		"X-Who": {"me", "you"}, "X-Key": {"first", "second"}, "Traceparent": {"00-ab", ""},
		"Baggage": {"ours", "ours"}, "Tracestate": {"", ""}, "Content-Type": {"application/json", "application/json"},
	} {
		if got := [2]string{arrived[0].Get(name), arrived[1].Get(name)}; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestTheKeyIsWrittenAsTheProviderWantsIt(t *testing.T) {
	t.Parallel()
	key := request("").IdempotencyKey
	digits := strings.TrimPrefix(key, "idem_v1_")
	for settings, want := range map[string]string{
		"{format: opaque}":                 key,
		"{format: quoted}":                 `"` + key + `"`,
		"{max_length: 32}":                 digits,
		"{format: quoted, max_length: 34}": `"` + digits + `"`,
	} {
		arrived, _ := dispatchOnce(t, "idempotency_key: "+settings, "{path: /}", request(`{}`))
		if got := arrived.header.Get("Idempotency-Key"); got != want {
			t.Errorf("%s: %s, want %s", settings, got, want)
		}
	}
	arrived, _ := dispatchOnce(t, "idempotency_key: {format: uuid, header: x-request-id}", "{path: /}", request(`{}`))
	uuid := arrived.header.Get("X-Request-Id")
	if len(uuid) != 36 || uuid[14] != '8' || !strings.ContainsRune("89ab", rune(uuid[19])) || !strings.HasPrefix(uuid, digits[:8]+"-") {
		t.Errorf("not a UUID of version 8 from the key's digits: %s", uuid)
	}
	if arrived.header.Get("Idempotency-Key") != "" {
		t.Error("the key is sent in two headers")
	}
}

// A header of the provider may be a credential, whatever its name is.
func TestAPreviewIsTheRequestWithoutCredentials(t *testing.T) {
	t.Parallel()
	adapter := newAdapter(t, spec("http://127.0.0.1:1/hooks/B0/", `headers: {Authorization: Bearer hunter2-hunter2, X-Shop: k3y}`,
		`{path: '/orders/{.payload.order}', query: {dry: '{.payload.dry}', api_key: k3y, of: 'k3y-{.key}'},
		headers: {X-Order: '{.payload.order}', X-Api-Key: k3y, X-Of: 'k3y-{.key}', X-Jq: '{"k3y" + .key}', user-agent: k3y}, map: '{sum: (.payload.sum + 0)}'}`))
	order := request(`{"order": "a b", "dry": "<1>", "sum": 12345678901234567890}`)
	order.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "baggage": "user=eve"}
	got, err := adapter.Preview(t.Context(), order)
	want := strings.Join([]string{
		"POST http://127.0.0.1:1/[hidden]/orders/a%20b?api_key=[hidden]&dry=%3C1%3E&of=[hidden]", "Authorization: [hidden]", "Baggage: [hidden]", "Content-Type: application/json",
		"Idempotency-Key: " + order.IdempotencyKey, "Traceparent: " + order.Headers["traceparent"], "User-Agent: [hidden]", "X-Api-Key: [hidden]", "X-Jq: [hidden]", "X-Of: [hidden]", "X-Order: a b",
		"X-Shop: [hidden]", "", `{"sum":12345678901234567890}`,
	}, "\n")
	if err != nil || got != want {
		t.Errorf("got  %q, %v\nwant %q", got, err, want)
	}
	for payload, want := range map[string]string{
		`{"order": "../secret-part"}`:                           "path cannot be rendered: .payload.order: ",
		`{"order": "a", "dry": {"secret-part": 1}}`:             "query.dry cannot be rendered: .payload.dry: ",
		`{"order": "a", "dry": "b", "sum": "secret-part"}`:      "map cannot be rendered: {sum: (.payload.sum + 0)}: cannot add a string",
		`{"order": "a", "dry": "b", "sum": 1, "secret-part": }`: "payload cannot be rendered: it cannot be read",
	} {
		if got, err := adapter.Preview(t.Context(), request(payload)); err == nil || got != "" || strings.Contains(err.Error(), "secret-part") || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("of what cannot be rendered: %q, %v", got, err)
		}
	}
	unknown := order
	unknown.Tuple.ToolName = "stripe/refund"
	if _, err := adapter.Preview(t.Context(), unknown); err == nil {
		t.Error("an unknown tool has a preview")
	}
}
