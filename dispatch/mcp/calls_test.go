package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

type params struct {
	Meta      map[string]any  `json:"_meta"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

func only(t *testing.T, e *endpoint) (sent params) {
	t.Helper()
	calls := e.calls()
	if len(calls) != 1 {
		t.Fatalf("%d calls", len(calls))
	}
	if err := json.Unmarshal(calls[0].Body, &sent); err != nil {
		t.Fatal(err)
	}
	return sent
}

func TestACallCarriesKeyTupleAndTraceContext(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{})
	request := intent("1")
	request.Headers = map[string]string{"Traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Cookie": "no"}
	settings := "{url: '" + e.url() + "', idempotency_key: {tuple: true}}"
	got := adapterFor(t, settings, "{key_argument: request_id}", dispatch.KeyIdempotent).Dispatch(t.Context(), request)
	if got.Outcome != dispatch.Completed {
		t.Fatalf("got %+v", got)
	}
	sent := only(t, e)
	tuple, _ := sent.Meta["io.github.agentoutbox/idempotency-tuple"].(map[string]any)
	if sent.Meta[keyMeta] != request.IdempotencyKey || tuple["step_id"] != "1" || tuple["tool_name"] != "till/act" {
		t.Errorf("_meta %v", sent.Meta)
	}
	if sent.Meta["traceparent"] != request.Headers["Traceparent"] || sent.Meta["cookie"] != nil {
		t.Errorf("_meta %v", sent.Meta)
	}
	if want := `{"amount":1,"request_id":"` + request.IdempotencyKey + `"}`; string(sent.Arguments) != want {
		t.Errorf("arguments %s, want %s", sent.Arguments, want)
	}
}

func TestTheKeyGoesWhereItIsConfiguredTo(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{})
	settings := "{url: '" + e.url() + "', idempotency_key: {meta: com.example/key}}"
	adapterFor(t, settings, "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1"))
	if sent := only(t, e); sent.Meta["com.example/key"] != intent("1").IdempotencyKey || sent.Meta[keyMeta] != nil {
		t.Errorf("_meta %v", sent.Meta)
	}
}

func TestArgumentsAreMapped(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{})
	e.server.AddTool(&sdk.Tool{Name: "pay.v2", InputSchema: anyObject}, e.till.pay)
	e.adapter(t, "{name: pay.v2, arguments: '{cents: .payload.amount, run: .agent_run_id}'}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1"))
	if sent := only(t, e); sent.Name != "pay.v2" || string(sent.Arguments) != `{"cents":1,"run":"run-001"}` {
		t.Errorf("sent %+v", sent)
	}
}

func TestWhatCannotBeRenderedIsRejectedUnsent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ tool, payload, why string }{
		"no object":            {"{}", "[1]", "the arguments of a call are an object, and this is an array"},
		"null":                 {"{}", "null", "the arguments of a call are an object, and this is null"},
		"mapped to a number":   {"{arguments: '7'}", "{}", "the arguments of a call are an object, and this is a number"},
		"a mapping that fails": {"{arguments: '.payload.a.b.c'}", `{"a": 1}`, ".payload.a.b.c: expected an object but got a number; .payload.a is a number"},
		"the key is there":     {"{key_argument: k}", `{"k": 1}`, "the arguments already have the one that carries the idempotency key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request := intent("1")
			request.Payload = json.RawMessage(test.payload)
			got := adapterFor(t, "{url: 'http://127.0.0.1:1'}", test.tool, dispatch.KeyIdempotent).Dispatch(t.Context(), request)
			dispatchtest.Expect(t, got, dispatch.Rejected, "unrenderable_request")
			if p := got.Problem; p == nil || p.Title != "arguments cannot be rendered" || p.Detail != test.why {
				t.Errorf("it says %+v, want %s", p, test.why)
			}
		})
	}
}

func TestAToolThatTheServerDoesNotListIsNotCalled(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{versions: []string{legacy}})
	adapter := e.adapter(t, "{name: later}", dispatch.KeyIdempotent)
	got := adapter.Dispatch(t.Context(), intent("1"))
	if got.Outcome != dispatch.NotSent || got.ErrorClass != "unknown_tool" || !got.OfOperation || len(e.calls()) != 0 {
		t.Errorf("got %+v", got)
	}
	e.server.AddTool(&sdk.Tool{Name: "later", InputSchema: anyObject}, e.till.pay)
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent("2")), dispatch.Completed, "")
}

func TestCredentialsThatAreRefusedAListAreTheProviders(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body string
		open bool
	}{
		"in an open session":             {"", true},
		"in an open session, by a fault": {`{"jsonrpc":"2.0","id":4711,"error":{"code":-32001,"message":"no"}}`, true},
		"while the session is opened":    {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEndpoint(t, endpointOptions{versions: []string{legacy}})
			spec := specFor("{url: '"+e.url()+"'}", "{}", dispatch.KeyIdempotent)
			spec.Tools["later"] = spec.Tools["act"]
			adapter := build(t, spec)
			if test.open {
				dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent("1")), dispatch.Completed, "")
			}
			next := e.handler
			e.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				methods := e.methods()
				switch {
				case r.Method == http.MethodDelete: // the client gives up a session
					w.WriteHeader(http.StatusMethodNotAllowed)
				case methods[len(methods)-1] == "tools/list":
					w.WriteHeader(http.StatusUnauthorized)
					_, _ = io.WriteString(w, test.body)
				default:
					next.ServeHTTP(w, r)
				}
			})
			got := adapter.Dispatch(t.Context(), dispatchtest.Intent("till/later", "2", `{}`))
			dispatchtest.Expect(t, got, dispatch.CredentialsRefused, "http_401")
		})
	}
}

func TestListsAreReadToTheEnd(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{})
	paged := sdk.NewServer(&sdk.Implementation{Name: "till", Version: "1"}, &sdk.ServerOptions{PageSize: 2})
	for _, name := range []string{"a", "b", "c", "d", "e", "z"} {
		paged.AddTool(&sdk.Tool{Name: name, InputSchema: anyObject}, e.till.pay)
	}
	e.server = paged
	dispatchtest.Expect(t, e.adapter(t, "{name: z}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1")), dispatch.Completed, "")
}

func TestAnExpiredSessionIsReopenedByTheNextDispatch(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{versions: []string{legacy}})
	adapter := e.adapter(t, "{}", dispatch.KeyIdempotent)
	adapter.Dispatch(t.Context(), intent("1"))
	e.restart()
	got := adapter.Dispatch(t.Context(), intent("2"))
	if got.Outcome != dispatch.Throttled || got.ErrorClass != "session_expired" || got.Overloaded() {
		t.Errorf("got %+v", got)
	}
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent("2")), dispatch.Completed, "")
	if calls := len(e.calls()); calls != 3 || e.till.executions(intent("2").IdempotencyKey) != 1 {
		t.Errorf("%d calls", calls)
	}
}

func TestA404WithoutASessionIsARefusal(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, stateless)
	e.takeCalls(status(404))
	if got := e.adapter(t, "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1")); got.Outcome != dispatch.Rejected {
		t.Errorf("got %+v", got)
	}
}

// Dispatches share a session. The end of one call must not end another one.
func TestOneBadAnswerDoesNotHarmOtherCalls(t *testing.T) {
	t.Parallel()
	babble := func(contentType, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = io.WriteString(w, text)
		}
	}
	for name, bad := range map[string]http.HandlerFunc{
		"no JSON":          babble("application/json", "<html>"),
		"no event":         babble("text/event-stream", "220 mail.example\n\n"),
		"no message":       babble("text/event-stream", "data: {}\n\n"),
		"endless line":     babble("text/event-stream", "data: "+strings.Repeat("x", 2<<20)),
		"stream of others": babble("text/event-stream", "data: "+result([]byte("1"), `{"content":[]}`)+"\n\n"),
		"resumption fails": babble("text/event-stream", "id: 1_0\nretry: 1\ndata:\n\n"),
		"unknown type":     babble("text/html", "<html>"),
		"no status":        status(400),
		"severed":          sever,
		"cut short":        cutShort,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEndpoint(t, endpointOptions{versions: []string{legacy}})
			entered, release := make(chan struct{}), make(chan struct{})
			e.server.AddTool(&sdk.Tool{Name: "act", InputSchema: anyObject}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				close(entered)
				<-release
				return e.till.pay(ctx, r)
			})
			adapter := e.adapter(t, "{}", dispatch.KeyIdempotent)
			slow := make(chan dispatch.Result, 1)
			go func() { slow <- adapter.Dispatch(t.Context(), intent("slow")) }()
			<-entered
			e.takeCalls(bad)
			if got := adapter.Dispatch(t.Context(), intent("bad")); got.Outcome == dispatch.Completed || got.ErrorClass == "" {
				t.Errorf("the bad answer: %+v", got)
			}
			close(release)
			dispatchtest.Expect(t, <-slow, dispatch.Completed, "")
		})
	}
}

// A stream that breaks off after an event with an id is requested again. The call is not sent again.
func TestABrokenStreamIsResumed(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{versions: []string{legacy}})
	var id json.RawMessage
	e.takeCalls(func(w http.ResponseWriter, r *http.Request) {
		id = idOf(r)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: 1_0\nretry: 1\ndata:\n\n")
	})
	next := e.handler
	e.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.Header.Get("Last-Event-ID") != "1_0" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: 1_1\ndata: "+result(id, `{"content":[]}`)+"\n\n")
	})
	got := e.adapter(t, "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1"))
	if got.Outcome != dispatch.Completed || len(e.calls()) != 1 {
		t.Errorf("got %+v after %d calls", got, len(e.calls()))
	}
}

// A stream is read to its end after the answer, because a cut would cost its connection.
func TestAnAnsweredStreamIsNotCut(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{})
	cut, release := make(chan struct{}), make(chan struct{})
	e.takeCalls(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: "+result(idOf(r), `{"content":[]}`)+"\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			close(cut)
		case <-release:
		}
	})
	dispatchtest.Expect(t, e.adapter(t, "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1")), dispatch.Completed, "")
	select {
	case <-cut:
		t.Error("the stream was cut")
	case <-time.After(100 * time.Millisecond):
		close(release)
	}
}

func TestTheEndOfADispatchCancelsTheCall(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{versions: []string{legacy}})
	entered := make(chan struct{})
	cancelled := make(chan struct{})
	e.server.AddTool(&sdk.Tool{Name: "act", InputSchema: anyObject}, func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		close(entered)
		<-ctx.Done()
		close(cancelled)
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	got := e.adapter(t, "{}", dispatch.KeyIdempotent).Dispatch(ctx, intent("1"))
	dispatchtest.Expect(t, got, dispatch.Ambiguous, "cancelled")
	select {
	case <-cancelled:
	case <-time.After(drainertest.Patience):
		t.Error("the server was not notified")
	}
	if !slices.Contains(e.methods(), "notifications/cancelled") {
		t.Errorf("methods %v", e.methods())
	}
}

func TestTheServerGetsNothingThatItAsksFor(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{versions: []string{legacy}})
	refusals := make(chan error, 1)
	e.server.AddTool(&sdk.Tool{Name: "act", InputSchema: anyObject}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		_, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "your password?", RequestedSchema: anyObject})
		refusals <- err
		return e.till.pay(ctx, r)
	})
	got := e.adapter(t, "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1"))
	if err := <-refusals; err == nil || got.Outcome != dispatch.Completed {
		t.Errorf("refusal %v, %+v", err, got)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.ContainsFunc(e.bodies, func(body []byte) bool {
		return strings.Contains(string(body), `"method":"initialize"`) && strings.Contains(string(body), `"capabilities":{}`)
	}) {
		t.Error("the handshake declares capabilities")
	}
}

func TestEveryRequestNamesVersionAndCredentials(t *testing.T) {
	t.Parallel()
	for _, options := range []endpointOptions{stateless, {versions: []string{legacy}}} {
		e := startEndpoint(t, options)
		adapterFor(t, "{url: '"+e.url()+"', headers: {Authorization: Bearer "+token+"}}", "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1"))
		e.mu.Lock()
		initialized := false
		for i, request := range e.requests {
			if request.Header.Get("Authorization") != "Bearer "+token {
				t.Errorf("%s without credentials", e.bodies[i])
			}
			initialized = initialized || strings.Contains(string(e.bodies[i]), "notifications/initialized") || strings.Contains(string(e.bodies[i]), "tools/")
			if initialized && request.Header.Get("Mcp-Protocol-Version") == "" {
				t.Errorf("%s without a version", e.bodies[i])
			}
		}
		e.mu.Unlock()
	}
}

func TestTheCurrentProtocolIsSpokenWhereTheServerDoes(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, stateless)
	got := e.adapter(t, "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1"))
	if got.Outcome != dispatch.Completed || slices.Contains(e.methods(), "initialize") {
		t.Errorf("got %+v after %v", got, e.methods())
	}
	if sent := only(t, e); sent.Meta["io.modelcontextprotocol/protocolVersion"] != "2026-07-28" {
		t.Errorf("_meta %v", sent.Meta)
	}
}

// A connection may break anywhere. A dispatch makes at most one call, and its outcome is true.
func TestNoCutMakesASecondCallOrAFalseWord(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]endpointOptions{
		"current protocol": stateless,
		"sessions":         {versions: []string{legacy}},
		"JSON":             {versions: []string{legacy}, http: sdk.StreamableHTTPOptions{JSONResponse: true}},
		"resumable":        {versions: []string{legacy}, http: sdk.StreamableHTTPOptions{EventStore: sdk.NewMemoryEventStore(nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(seed, 0))
			e := startEndpoint(t, options)
			gate := dispatchtest.OpenGate(t, e.address, func(client, server net.Conn) {
				mu.Lock()
				up, down := 1+random.Int64N(8000), 1+random.Int64N(8000)
				mu.Unlock()
				dispatchtest.Carry(client, server, up, down)
			})
			spec := specFor("{url: 'http://"+gate.Address+"/mcp'}", "{}", dispatch.KeyIdempotent)
			spec.Timeout = 10 * time.Second
			seen := dispatchMany(t, spec, 200)
			checkAgainstTheTill(t, e, seen)
		})
	}
}

// dispatchMany dispatches distinct intents, four at a time.
func dispatchMany(t *testing.T, spec dispatch.Spec, count int) map[string]dispatch.Result {
	t.Helper()
	adapter := build(t, spec)
	var mu sync.Mutex
	seen := make(map[string]dispatch.Result, count)
	var workers sync.WaitGroup
	for worker := range 4 {
		workers.Go(func() {
			for i := range count / 4 {
				request := intent(fmt.Sprintf("%d-%d", worker, i))
				got := adapter.Dispatch(t.Context(), request)
				mu.Lock()
				seen[request.IdempotencyKey] = got
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return seen
}

func checkAgainstTheTill(t *testing.T, e *endpoint, seen map[string]dispatch.Result) {
	t.Helper()
	arrived := make(map[string]int)
	for _, message := range e.calls() {
		arrived[message.Key]++
	}
	counts := make(map[dispatch.Outcome]int)
	for key, got := range seen {
		counts[got.Outcome]++
		executions := e.till.executions(key)
		switch {
		case arrived[key] > 1:
			t.Errorf("%d calls for one dispatch: %+v", arrived[key], got)
		case got.Outcome == dispatch.Completed && executions != 1:
			t.Errorf("completed, and executed %d times", executions)
		case executions > 0 && got.Outcome != dispatch.Completed && got.Outcome != dispatch.Ambiguous:
			t.Errorf("executed, and said to be %s, %s", got.Outcome, got.ErrorClass)
		}
	}
	t.Logf("outcomes %v", counts)
	for _, outcome := range []dispatch.Outcome{dispatch.Completed, dispatch.Ambiguous} {
		if counts[outcome] == 0 {
			t.Errorf("no dispatch ended as %s; the cuts prove nothing", outcome)
		}
	}
}

// The library would answer a demand for input by calling again.
func TestADemandForInputIsNotAnsweredByCallingAgain(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, stateless)
	e.takeCalls(resulting(`{"resultType":"input_required","inputRequests":{"r":{"method":"roots/list","params":{}}},"requestState":"s"}`))
	got := e.adapter(t, "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1"))
	if got.Outcome != dispatch.Ambiguous || !got.Final || len(e.calls()) != 1 {
		t.Errorf("%d calls, %+v", len(e.calls()), got)
	}
}

// A connection that the server closed while it was idle is the classic cause
// of a request that the transport sends again.
func TestAStaleConnectionDoesNotMakeASecondCall(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{versions: []string{legacy}})
	adapter := e.adapter(t, "{}", dispatch.KeyIdempotent)
	adapter.Dispatch(t.Context(), intent("0"))
	e.takeCalls(func(w http.ResponseWriter, r *http.Request) { sever(w, r) })
	got := adapter.Dispatch(t.Context(), intent("1"))
	if got.Outcome != dispatch.Ambiguous || len(e.calls()) != 2 {
		t.Errorf("%d calls, %+v", len(e.calls()), got)
	}
}
