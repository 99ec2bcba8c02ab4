package mcp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

// ask makes one dispatch to an endpoint that handles the call with how.
func ask(t *testing.T, tool string, class dispatch.Class, how http.HandlerFunc) dispatch.Result {
	t.Helper()
	e := startEndpoint(t, endpointOptions{versions: []string{legacy}})
	e.takeCalls(how)
	got := e.adapter(t, tool, class).Dispatch(t.Context(), intent("1"))
	if calls := len(e.calls()); calls != 1 {
		t.Errorf("%d calls for one dispatch", calls)
	}
	return got
}

func TestWhatAnAnswerProves(t *testing.T) {
	t.Parallel()
	const rules = `{response: {rules: [
		{when: '.code == -32000 and (.message | startswith("duplicate"))', outcome: completed},
		{when: '.code == -32000 and .data.retry', outcome: throttled, error: quota},
		{when: '.is_error and (.text | test("insufficient funds"))', outcome: rejected, error: no_funds},
		{when: '.structured.state == "pending"', outcome: in_flight},
		{when: '.structured.broken | .[0]', outcome: rejected}]}}`
	for name, test := range map[string]struct {
		tool  string
		how   http.HandlerFunc
		want  dispatch.Outcome
		class string
		final bool
	}{
		"a result":               {how: resulting(`{"content":[]}`), want: dispatch.Completed},
		"structured alone":       {how: resulting(`{"structuredContent":{"id":1}}`), want: dispatch.Completed},
		"content of any kind":    {how: resulting(`{"content":[{"type":"hologram"}]}`), want: dispatch.Completed},
		"content of no list":     {how: resulting(`{"content":null}`), want: dispatch.Completed},
		"invalid params":         {how: faulting(-32602, "no such tool"), want: dispatch.Rejected, class: "invalid_params"},
		"method not found":       {how: faulting(-32601, "no tools"), want: dispatch.Rejected, class: "method_not_found"},
		"invalid request":        {how: faulting(-32600, "what"), want: dispatch.Rejected, class: "invalid_request"},
		"elicitation required":   {how: faulting(-32042, "log in first"), want: dispatch.Rejected, class: "elicitation_required"},
		"header mismatch":        {how: faulting(-32020, "other headers"), want: dispatch.Throttled, class: "header_mismatch"},
		"internal error":         {how: faulting(-32603, "oops"), want: dispatch.Ambiguous, class: "internal_error"},
		"an error of its own":    {how: faulting(-32000, "oops"), want: dispatch.Ambiguous, class: "rpc_error"},
		"the tool failed":        {how: resulting(`{"content":[],"isError":true}`), want: dispatch.Ambiguous, class: "tool_error"},
		"the tool refuses":       {tool: "{response: {is_error: rejected}}", how: resulting(`{"content":[],"isError":true}`), want: dispatch.Rejected, class: "tool_error"},
		"input wanted":           {how: resulting(`{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"sure?"}}}}`), want: dispatch.Ambiguous, class: "input_required", final: true},
		"input wanted by a name": {how: resulting(`{"resultType":"input_required","inputRequests":{}}`), want: dispatch.Ambiguous, class: "input_required"},

		"a type of a later day":  {how: resulting(`{"resultType":"accepted","content":[]}`), want: dispatch.Ambiguous, class: "protocol"},
		"no result":              {how: resulting(`{}`), want: dispatch.Ambiguous, class: "protocol"},
		"a list":                 {how: resulting(`[]`), want: dispatch.Ambiguous, class: "protocol"},
		"isError of no truth":    {how: resulting(`{"content":[],"isError":"no"}`), want: dispatch.Ambiguous, class: "protocol"},
		"neither result nor not": {how: replying(func(id json.RawMessage) string { return `{"jsonrpc":"2.0","id":` + string(id) + `}` }), want: dispatch.Ambiguous, class: "protocol"},
		"another call's answer":  {how: replying(func(json.RawMessage) string { return result([]byte("4711"), `{"content":[]}`) }), want: dispatch.Ambiguous, class: "protocol"},
		"too long":               {how: resulting(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 1<<20) + `"}]}`), want: dispatch.Ambiguous, class: "body_too_large"},
		"cut short":              {how: cutShort, want: dispatch.Ambiguous, class: "reset"},
		"a stream without one":   {how: streaming(": nothing\n\n"), want: dispatch.Ambiguous, class: "reset"},
		"half an event":          {how: streaming("data: {}"), want: dispatch.Ambiguous, class: "reset"},
		"a stream of noise":      {how: streaming("220 mail.example\n\n"), want: dispatch.Ambiguous, class: "protocol"},
		"accepted, no answer":    {how: status(202), want: dispatch.Ambiguous, class: "protocol"},

		"a rule completes": {tool: rules, how: faulting(-32000, "duplicate of 7"), want: dispatch.Completed},
		"a rule reads data": {tool: rules, how: replying(func(id json.RawMessage) string {
			return `{"jsonrpc":"2.0","id":` + string(id) + `,"error":{"code":-32000,"message":"x","data":{"retry":true}}}`
		}), want: dispatch.Throttled, class: "quota"},
		"a rule reads text":      {tool: rules, how: resulting(`{"isError":true,"content":[{"type":"text","text":"insufficient funds"}]}`), want: dispatch.Rejected, class: "no_funds"},
		"a rule reads structure": {tool: rules, how: resulting(`{"content":[],"structuredContent":{"state":"pending"}}`), want: dispatch.InFlight, class: "in_flight"},
		"a rule that fails":      {tool: rules, how: resulting(`{"content":[],"structuredContent":{"broken":7}}`), want: dispatch.Ambiguous, class: "rule_failed"},
		"no rule matches":        {tool: rules, how: resulting(`{"content":[],"structuredContent":{}}`), want: dispatch.Completed},
		"rules do not see HTTP":  {tool: rules, how: status(403), want: dispatch.Forbidden, class: "http_403"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.tool == "" {
				test.tool = "{}"
			}
			got := ask(t, test.tool, dispatch.KeyIdempotent, test.how)
			if got.Outcome != test.want || got.ErrorClass != test.class || got.Final != test.final {
				t.Errorf("got %+v, want %s, %s", got, test.want, test.class)
			}
		})
	}
}

func streaming(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, text)
	}
}

func cutShort(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", "1000")
	_, _ = io.WriteString(w, result(idOf(r), `{"content":[]`))
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(code)
	}
}

func TestWhatARefusalOfHTTPProves(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]dispatch.Outcome{
		307: dispatch.Rejected, 401: dispatch.CredentialsRefused, 403: dispatch.Forbidden, 413: dispatch.Rejected,
		400: dispatch.Throttled, 404: dispatch.Throttled, // the server does not know the session
		408: dispatch.Ambiguous, 425: dispatch.InFlight, 429: dispatch.Throttled,
		500: dispatch.Ambiguous, 502: dispatch.Ambiguous, 503: dispatch.Throttled, 529: dispatch.Throttled,
	} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			got := ask(t, "{}", dispatch.KeyIdempotent, status(code))
			if got.Outcome != want || got.HTTPStatus != code || got.RetryAfter != 7*time.Second || got.ErrorClass == "" {
				t.Errorf("got %+v, want %s", got, want)
			}
		})
	}
}

// A server, or a gateway, may put the status of a refusal on the result of a tool. The tool has run all the same.
// So neither that status, nor an expired session, nor an internal error proves that a call had no effect.
func TestAResultProvesThatTheToolRanWhateverItsStatus(t *testing.T) {
	t.Parallel()
	all := []int{400, 401, 403, 404, 422}
	for name, test := range map[string]struct {
		how   http.HandlerFunc
		codes []int
		want  dispatch.Outcome
	}{
		"a failure of the tool": {resulting(`{"isError":true,"content":[{"type":"text","text":"charged, then crashed"}]}`), all, dispatch.Ambiguous},
		"a success":             {resulting(`{"content":[{"type":"text","text":"charged"}]}`), all, dispatch.Completed},
		"a wish for input":      {resulting(`{"resultType":"input_required","inputRequests":{"a":{}}}`), all, dispatch.Ambiguous},
		"an internal error":     {faulting(-32603, "charged, then crashed"), []int{400, 401, 403, 422}, dispatch.Ambiguous}, // a 404 is the end of a session
	} {
		for sessions, options := range map[string]endpointOptions{"with a session": {versions: []string{legacy}}, "without": stateless} {
			for _, code := range test.codes {
				t.Run(fmt.Sprint(name, " ", sessions, " ", code), func(t *testing.T) {
					t.Parallel()
					e := startEndpoint(t, options)
					e.takeCalls(func(w http.ResponseWriter, r *http.Request) {
						test.how(&restated{w, code}, r)
					})
					got := e.adapter(t, "{}", dispatch.NonIdempotent).Dispatch(t.Context(), intent("1"))
					if got.Outcome != test.want {
						t.Errorf("got %+v, want %s", got, test.want)
					}
				})
			}
		}
	}
}

// restated answers with another status than its handler wants.
type restated struct {
	http.ResponseWriter
	status int
}

func (w *restated) Write(raw []byte) (int, error) {
	w.WriteHeader(w.status)
	return w.ResponseWriter.Write(raw)
}

func TestAServerErrorIsDoubtWhateverItsBodySays(t *testing.T) {
	t.Parallel()
	got := ask(t, "{}", dispatch.KeyIdempotent, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, fault(idOf(r), -32602, "no"))
	})
	dispatchtest.Expect(t, got, dispatch.Ambiguous, "http_502")
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := startEndpoint(t, endpointOptions{})
	for status, want := range map[int]dispatch.Outcome{
		http.StatusMovedPermanently:  dispatch.Ambiguous, // the server may have acted, and says where the result is
		http.StatusFound:             dispatch.Ambiguous,
		http.StatusSeeOther:          dispatch.Ambiguous,
		http.StatusTemporaryRedirect: dispatch.Rejected,
	} {
		got := ask(t, "{}", dispatch.KeyIdempotent, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.url(), status)
		})
		if got.Outcome != want || len(elsewhere.methods()) != 0 {
			t.Errorf("%d: got %+v, and %d requests elsewhere", status, got, len(elsewhere.methods()))
		}
	}
}

func TestARedirectedHandshakeIsNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := startEndpoint(t, endpointOptions{})
	url := dispatchtest.Serve(t, http.RedirectHandler(elsewhere.url(), http.StatusPermanentRedirect))
	got := adapterFor(t, "{url: '"+url+"'}", "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1"))
	if got.Outcome != dispatch.NotSent || got.ErrorClass != "http_308" || len(elsewhere.methods()) != 0 {
		t.Errorf("got %+v, and %d requests elsewhere", got, len(elsewhere.methods()))
	}
}

func TestTheServersAnswerIsStored(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ result, want string }{
		"structure before content": {`{"content":[{"type":"text","text":"x"}],"structuredContent":{"id":12345678901234567890}}`, `{"id":12345678901234567890}`},
		"content":                  {`{"content":[{"type":"text","text":"x"}]}`, `[{"type":"text","text":"x"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ask(t, "{response: {ref: .structured.id}}", dispatch.KeyIdempotent, resulting(test.result))
			if string(got.Response) != test.want {
				t.Errorf("stored %s", got.Response)
			}
			if want := strings.Contains(test.want, "id") && got.ProviderRef != "12345678901234567890"; want {
				t.Errorf("reference %q", got.ProviderRef)
			}
		})
	}
	got := ask(t, "{}", dispatch.KeyIdempotent, faulting(-32602, "no such account"))
	if got.Problem == nil || got.Problem.Detail != "no such account" || !strings.Contains(string(got.Response), "-32602") {
		t.Errorf("a fault is kept as %+v, %s", got.Problem, got.Response)
	}
}

func TestAServersWordsAreNotCut(t *testing.T) {
	t.Parallel()
	for _, how := range []string{`{"structuredContent":{"id":"%s"}}`, `{"isError":true,"content":[{"type":"text","text":"%s"}]}`} {
		dispatchtest.ExpectWhole(t, func(words string) dispatch.Result {
			return ask(t, "{response: {ref: .structured.id}}", dispatch.KeyIdempotent, resulting(strings.Replace(how, "%s", words, 1)))
		})
	}
}

func TestALookupTellsAbsentFromFound(t *testing.T) {
	t.Parallel()
	const tool = `{response: {ref: '.structured.items[0].id', rules: [{when: '.structured.items == []', outcome: absent}, {when: '.code == -32602', outcome: absent}]}}`
	for name, test := range map[string]struct {
		how   http.HandlerFunc
		want  dispatch.Outcome
		class string
	}{
		"found":             {resulting(`{"content":[],"structuredContent":{"items":[{"id":"p1"}]}}`), dispatch.Completed, ""},
		"absent":            {resulting(`{"content":[],"structuredContent":{"items":[]}}`), dispatch.Absent, "absent"},
		"something else":    {resulting(`{"content":[]}`), dispatch.Ambiguous, "no_reference"},
		"a fault is no map": {faulting(-32602, "not found"), dispatch.Ambiguous, "rule_refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEndpoint(t, endpointOptions{})
			e.takeCalls(test.how)
			spec := specFor("{url: '"+e.url()+"'}", tool, dispatch.ReadOnly)
			lookup := spec.Tools["act"]
			lookup.AnswersLookups = true
			spec.Tools["act"] = lookup
			got := build(t, spec).Dispatch(t.Context(), intent("1"))
			dispatchtest.Expect(t, got, test.want, test.class)
		})
	}
}

func TestAReplayIsRecognised(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{})
	adapter := e.adapter(t, "{response: {ref: .structured.id}}", dispatch.KeyIdempotent)
	first, second := adapter.Dispatch(t.Context(), intent("1")), adapter.Dispatch(t.Context(), intent("1"))
	if first.Replayed || !second.Replayed || first.ProviderRef != second.ProviderRef || e.till.executions(intent("1").IdempotencyKey) != 1 {
		t.Errorf("first %+v, second %+v", first, second)
	}
}

// A hint of the server can only restrict the promise of the configuration.
func TestHintsForbidRepeating(t *testing.T) {
	t.Parallel()
	silent := (*sdk.ToolAnnotations)(nil)
	for name, test := range map[string]struct {
		hints *sdk.ToolAnnotations
		class dispatch.Class
		final bool
	}{
		"no hints":                       {silent, dispatch.NaturallyIdempotent, false},
		"not idempotent":                 {&sdk.ToolAnnotations{Title: "Pay"}, dispatch.NaturallyIdempotent, true},
		"idempotent":                     {&sdk.ToolAnnotations{IdempotentHint: true}, dispatch.NaturallyIdempotent, false},
		"read-only":                      {&sdk.ToolAnnotations{ReadOnlyHint: true}, dispatch.NaturallyIdempotent, false},
		"not read-only":                  {&sdk.ToolAnnotations{Title: "Pay"}, dispatch.ReadOnly, true},
		"a key makes it safe":            {&sdk.ToolAnnotations{Title: "Pay"}, dispatch.KeyIdempotent, false},
		"a good hint makes nothing safe": {&sdk.ToolAnnotations{IdempotentHint: true}, dispatch.NonIdempotent, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEndpoint(t, endpointOptions{})
			e.server.AddTool(&sdk.Tool{Name: "act", InputSchema: anyObject, Annotations: test.hints}, e.till.pay)
			e.takeCalls(sever)
			got := e.adapter(t, "{}", test.class).Dispatch(t.Context(), intent("1"))
			if got.Outcome != dispatch.Ambiguous || got.Final != test.final {
				t.Errorf("got %+v, want final: %t", got, test.final)
			}
		})
	}
}

// A home-made server may ignore a method that it does not know, where it should refuse it. Later sessions do not
// try that method again.
func TestAServerThatIsSilentToDiscoverGetsInitialize(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (settings string, discoveries func() int, endSession func()){
		"over HTTP": func(t *testing.T) (string, func() int, func()) {
			behind := startEndpoint(t, endpointOptions{versions: []string{legacy}})
			var discoveries atomic.Int64
			baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if bytes.Contains(body, []byte(`"server/discover"`)) {
					discoveries.Add(1)
					<-r.Context().Done()
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				behind.ServeHTTP(w, r)
			}))
			return `{"url": "` + baseURL + `/mcp"}`, func() int { return int(discoveries.Load()) }, behind.restart
		},
		"over stdio": func(t *testing.T) (string, func() int, func()) {
			n := newNursery(t)
			settings := n.settings(t, map[string]any{"env": map[string]string{
				"MCP_TEST_ROLE": "server", "MCP_TEST_FOLDER": n.folder, "MCP_TEST_OLDER": "yes", "GORACE": "atexit_sleep_ms=0",
			}})
			return settings, func() int { return len(n.lines("discoveries")) }, func() { n.kill(t) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings, discoveries, endSession := start(t)
			adapter := adapterFor(t, settings, "{}", dispatch.KeyIdempotent)
			adapter.BePatient(3 * time.Second)
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent("1")), dispatch.Completed, "")
			endSession()
			drainertest.Eventually(t, "another session is open", func() bool {
				return adapter.Dispatch(t.Context(), intent("2")).Outcome == dispatch.Completed
			})
			if discoveries() != 1 {
				t.Errorf("it was asked %d times", discoveries())
			}
		})
	}
}
