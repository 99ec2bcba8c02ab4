package http_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
)

func request(payload string) dispatch.Request {
	return dispatchtest.Intent("stripe/charge", "step-1", payload)
}

func spec(baseURL, settings, tool string) dispatch.Spec {
	return dispatch.Spec{
		Provider: "stripe",
		Timeout:  10 * time.Second,
		Settings: dispatchtest.Block("base_url: " + baseURL + "\n" + settings),
		Tools:    map[string]dispatch.ToolSpec{"charge": {Class: dispatch.KeyIdempotent, Settings: dispatchtest.Block(tool)}},
	}
}

func newAdapter(t *testing.T, spec dispatch.Spec) *dispatchhttp.Adapter {
	t.Helper()
	return dispatchtest.Build(t, dispatchhttp.New, spec)
}

// reply is a provider's answer.
type reply struct {
	status  int
	headers map[string]string
	body    string
}

// answer dispatches once to a provider with this reply, and returns the result.
func answer(t *testing.T, reply reply, settings string, tool dispatch.ToolSpec) dispatch.Result {
	t.Helper()
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for name, value := range reply.headers {
			w.Header().Set(name, value)
		}
		w.WriteHeader(reply.status)
		_, _ = io.WriteString(w, reply.body)
	}))
	spec := spec(baseURL, settings, "")
	spec.Tools["charge"] = tool
	return newAdapter(t, spec).Dispatch(t.Context(), request(`{}`))
}

func TestBadConfigurationIsRefusedByFieldName(t *testing.T) {
	t.Parallel()
	const base = "base_url: https://api.example.com\n"
	dispatchtest.Refuses(t, dispatchhttp.Kind(), dispatchtest.Mistakes{
		"no base":              {"", "{path: /}", "base_url is missing"},
		"ftp":                  {"base_url: ftp://h", "{path: /}", "neither http nor https"},
		"no host":              {"base_url: 'https:///x'", "{path: /}", "no host"},
		"userinfo":             {"base_url: https://u:canary@h", "{path: /}", "credentials"},
		"query":                {"base_url: https://h/?k=canary", "{path: /}", "query"},
		"fragment":             {"base_url: https://h/#canary", "{path: /}", "fragment"},
		"unparsable":           {"base_url: 'https://h:canary'", "{path: /}", "not a URL"},
		"header newline":       {base + "headers: {A: \"canary\\n\"}", "{path: /}", "value of A"},
		"header name":          {base + "headers: {'A B': x}", "{path: /}", "header name"},
		"host header":          {base + "headers: {host: evil}", "{path: /}", "Host"},
		"tool host header":     {base, "{path: /, headers: {host: evil}}", "Host"},
		"key header twice":     {base + "headers: {idempotency-key: x}", "{path: /}", "idempotency key"},
		"two key places":       {base + "idempotency_key: {header: A, field: b}", "{path: /}", "set one of"},
		"key header name":      {base + "idempotency_key: {header: 'canary !'}", "{path: /}", "idempotency_key.header is not"},
		"key parameter twice":  {base + "idempotency_key: {query: id}", "{path: /, query: {id: '7'}}", "query: a parameter carries"},
		"query placeholder":    {base, "{path: /, query: {q: '{.canary'}}", "query.q: placeholder at offset 0"},
		"key format":           {base + "idempotency_key: {format: base64}", "{path: /}", "idempotency_key.format"},
		"key too short":        {base + "idempotency_key: {max_length: 8}", "{path: /}", "max_length"},
		"uuid too short":       {base + "idempotency_key: {format: uuid, max_length: 32}", "{path: /}", "max_length"},
		"key field, no body":   {base + "idempotency_key: {field: k}", "{path: /, body: none}", "idempotency_key.field"},
		"negative limit":       {base + "max_response_body: -1", "{path: /}", "max_response_body"},
		"unknown field":        {base, "{path: /, bdoy: json}", "not what *http.Tool takes"},
		"no path":              {base, "{method: GET}", "path must start"},
		"absolute URL":         {base, "{path: 'https://evil/'}", "path must start"},
		"query in path":        {base, "{path: '/a?b=canary'}", "use query"},
		"bad escape":           {base, "{path: '/a%zz'}", "%"},
		"method":               {base, "{path: /, method: CONNECT}", "method"},
		"body":                 {base, "{path: /, body: xml}", "body is none of"},
		"body of GET":          {base, "{path: /, method: GET, body: json}", "GET"},
		"map without body":     {base, "{path: /, body: none, map: .payload}", "map"},
		"map does not parse":   {base, "{path: /, map: '.canary | |'}", "map: jq does not parse"},
		"map reads the clock":  {base, "{path: /, map: '{at: (now | floor)}'}", "now"},
		"open placeholder":     {base, "{path: '/{.canary'}", "placeholder at offset 1"},
		"stray brace":          {base, "{path: '/a}'}", "closes nothing"},
		"ref":                  {base, "{path: /, response: {ref: '.['}}", "response.ref"},
		"profile":              {base + "profile: canary", "{path: /}", "profile is none of github, ietf, none,"},
		"replay header":        {base + "replay_header: 'canary !'", "{path: /}", "replay_header"},
		"retry header":         {base + "should_retry_header: 'canary !'", "{path: /}", "should_retry_header"},
		"capture header":       {base + "capture_headers: ['canary !']", "{path: /}", "capture_headers"},
		"no condition":         {base, "{path: /, response: {rules: [{outcome: rejected}]}}", "response.rules.0: when is missing"},
		"bad condition":        {base, "{path: /, response: {rules: [{when: '.canary ==', outcome: rejected}]}}", "when: jq does not parse"},
		"clock in condition":   {base, "{path: /, response: {rules: [{when: 'now > 1', outcome: rejected}]}}", "now"},
		"no outcome":           {base, "{path: /, response: {rules: [{when: .status == 1}]}}", "outcome is none of"},
		"outcome of an engine": {base, "{path: /, response: {rules: [{when: .status == 1, outcome: lost}]}}", "outcome is none of"},
		"wait for a failure":   {base, "{path: /, response: {rules: [{when: .status == 1, outcome: rejected, retry_after: '1'}]}}", "rejected is not tried again"},
		"bad wait":             {base, "{path: /, response: {rules: [{when: .status == 1, outcome: throttled, retry_after: '.['}]}}", "retry_after: jq"},
		"error of a success":   {base, "{path: /, response: {rules: [{when: .status == 1, outcome: completed, error: x}]}}", "completed is none"},
		"long error":           {base, "{path: /, response: {rules: [{when: .status == 1, outcome: rejected, error: Canary Error}]}}", "short name"},
		"absent of a write":    {base, "{path: /, response: {rules: [{when: .status == 404, outcome: absent}]}}", "not read_only"},
	})
}

func TestAllProblemsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := dispatchhttp.New(spec("ftp://h", "max_response_body: -1", "{path: x, method: BREW}"))
	for _, want := range []string{"base_url", "max_response_body", "tool charge: path", "method"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not mention %s: %v", want, err)
		}
	}
}

func TestAnAdapterSaysWhereItsRequestsGo(t *testing.T) {
	t.Parallel()
	dispatchtest.ConnectsTo(t, dispatchhttp.Kind(), map[string][]dispatch.Destination{
		"base_url: https://api.example.com/v1":   {{Network: "tcp", Address: "api.example.com:443", TLS: dispatch.ImplicitTLS}},
		"base_url: https://api.example.com:8443": {{Network: "tcp", Address: "api.example.com:8443", TLS: dispatch.ImplicitTLS}},
		"base_url: http://127.0.0.1":             {{Network: "tcp", Address: "127.0.0.1:80"}},
		"base_url: 'http://[::1]:8080/hooks'":    {{Network: "tcp", Address: "[::1]:8080"}},
	})
}

func TestTheHTTPAdapterConforms(t *testing.T) {
	for class, tool := range map[dispatch.Class]string{
		dispatch.KeyIdempotent:       "{path: /v1/charges, response: {ref: .id}}",
		dispatch.NaturallyIdempotent: "{method: PUT, path: '/v1/charges/{.key}', response: {ref: .id}}",
	} {
		for _, wire := range dispatchtest.Wires() {
			t.Run(string(class)+" over "+string(wire), func(t *testing.T) {
				dispatchtest.Conform(t, dispatchtest.Subject{
					Kind:  dispatchhttp.Kind(),
					Class: class,
					Start: func(t *testing.T) dispatchtest.Counterpart { return startUpstream(t, wire, tool) },
				})
			})
		}
	}
}

const token = "token-9d41c07e"

func startUpstream(t *testing.T, wire dispatchtest.Wire, tool string) dispatchtest.Counterpart {
	upstream := dispatchtest.StartHTTP(t, wire, "Idempotency-Key")
	return dispatchtest.Counterpart{
		Settings: "{base_url: '" + upstream.URL + "', headers: {Authorization: Bearer " + token + "}}",
		Tool:     tool,
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`),
		TLS:      wire.ClientTLS(t),
		Secrets:  []string{token},
		Received: upstream.Received,
		Enter:    upstream.Enter,
	}
}
