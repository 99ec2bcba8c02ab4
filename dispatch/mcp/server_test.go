package mcp_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/mcp"
)

const keyMeta = "io.github.agentoutbox/idempotency-key"

// till is a tool with an effect. It executes once for each key, and marks the answer to a later call as a replay.
type till struct {
	mu       sync.Mutex
	executed map[string]int
}

func newTill() *till { return &till{executed: make(map[string]int)} }

func (l *till) pay(_ context.Context, request *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	key, _ := request.Params.Meta[keyMeta].(string)
	l.mu.Lock()
	defer l.mu.Unlock()
	replayed := key != "" && l.executed[key] > 0
	if !replayed {
		l.executed[key]++
	}
	return &sdk.CallToolResult{
		Meta:              sdk.Meta{"io.github.agentoutbox/replayed": replayed},
		StructuredContent: map[string]any{"id": "pay_" + key},
		Content:           []sdk.Content{&sdk.TextContent{Text: "paid"}},
	}, nil
}

func (l *till) executions(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.executed[key]
}

var anyObject = json.RawMessage(`{"type":"object"}`)

// newServer returns a server with the tool. Without versions it supports all that the library knows.
func newServer(pay sdk.ToolHandler, versions ...string) *sdk.Server {
	server := sdk.NewServer(&sdk.Implementation{Name: "till", Version: "1"}, &sdk.ServerOptions{SupportedProtocolVersions: versions})
	server.AddTool(&sdk.Tool{Name: "act", InputSchema: anyObject}, pay)
	return server
}

const legacy = "2025-11-25"

// endpoint is an MCP server over streamable HTTP. Its handler of calls can be replaced.
type endpoint struct {
	till    *till
	server  *sdk.Server
	handler http.Handler
	address string

	mu       sync.Mutex
	onCall   http.HandlerFunc // nil leaves calls to the server
	messages []dispatchtest.Message
	requests []*http.Request
	bodies   [][]byte
}

type endpointOptions struct {
	wire     dispatchtest.Wire // plain if empty
	versions []string
	http     sdk.StreamableHTTPOptions
}

// stateless serves the current protocol.
var stateless = endpointOptions{http: sdk.StreamableHTTPOptions{Stateless: true}}

func startEndpoint(t *testing.T, options endpointOptions) *endpoint {
	t.Helper()
	e := &endpoint{till: newTill()}
	e.server = newServer(e.till.pay, options.versions...)
	e.handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return e.server }, &options.http)
	_, e.address, _ = strings.Cut(cmp.Or(options.wire, dispatchtest.Plain).Serve(t, e), "://")
	return e
}

// restart forgets every session.
func (e *endpoint) restart() {
	e.handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return e.server }, nil)
}

func (e *endpoint) url() string { return "http://" + e.address + "/mcp" }

// takeCalls replaces the handler of calls.
func (e *endpoint) takeCalls(how http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.onCall = how
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // it did not arrive whole
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if handler := e.note(r, body); handler != nil {
		handler(w, r)
		return
	}
	e.handler.ServeHTTP(w, r)
}

func (e *endpoint) note(r *http.Request, body []byte) http.HandlerFunc {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.requests, e.bodies = append(e.requests, r), append(e.bodies, body)
	message, isCall := readCall(body)
	if !isCall {
		return nil
	}
	e.messages = append(e.messages, message)
	return e.onCall
}

// calls returns the tools/call messages that arrived.
func (e *endpoint) calls() []dispatchtest.Message {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.messages)
}

// methods returns the JSON-RPC methods that arrived.
func (e *endpoint) methods() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var methods []string
	for _, body := range e.bodies {
		var message struct {
			Method string `json:"method"`
		}
		if json.Unmarshal(body, &message) == nil {
			methods = append(methods, message.Method)
		}
	}
	return methods
}

func readCall(text []byte) (message dispatchtest.Message, isCall bool) {
	var request struct {
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	var params struct {
		Meta map[string]any `json:"_meta"`
	}
	if json.Unmarshal(text, &request) != nil || request.Method != "tools/call" || json.Unmarshal(request.Params, &params) != nil {
		return message, false
	}
	key, _ := params.Meta[keyMeta].(string)
	return dispatchtest.Message{Key: key, Body: request.Params}, true
}

// idOf returns the id of the call in a request.
func idOf(r *http.Request) json.RawMessage {
	var request struct {
		ID json.RawMessage `json:"id"`
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &request) != nil {
		panic(http.ErrAbortHandler)
	}
	return request.ID
}

// fault returns the answer to a call with a JSON-RPC error. result returns one with a result.
func fault(id json.RawMessage, code int, message string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, id, code, message)
}

func result(id json.RawMessage, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, text)
}

// replying answers every call with the JSON that write returns.
func replying(write func(id json.RawMessage) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, write(idOf(r)))
	}
}

func resulting(text string) http.HandlerFunc {
	return replying(func(id json.RawMessage) string { return result(id, text) })
}

func faulting(code int, message string) http.HandlerFunc {
	return replying(func(id json.RawMessage) string { return fault(id, code, message) })
}

// sever hangs up without an answer.
func sever(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_ = conn.Close()
}

// adapterFor builds an adapter from blocks of configuration.
func adapterFor(t *testing.T, settings, tool string, class dispatch.Class) *mcp.Adapter {
	t.Helper()
	return build(t, specFor(settings, tool, class))
}

func build(t *testing.T, spec dispatch.Spec) *mcp.Adapter {
	t.Helper()
	return dispatchtest.Build(t, mcp.New, spec)
}

func specFor(settings, tool string, class dispatch.Class) dispatch.Spec {
	return dispatch.Spec{
		Provider: "till",
		Timeout:  20 * time.Second,
		Settings: dispatchtest.Block(settings),
		Tools:    map[string]dispatch.ToolSpec{"act": {Class: class, Settings: dispatchtest.Block(tool)}},
	}
}

func (e *endpoint) adapter(t *testing.T, tool string, class dispatch.Class) *mcp.Adapter {
	t.Helper()
	return adapterFor(t, "{url: '"+e.url()+"'}", tool, class)
}

func intent(step string) dispatch.Request {
	return dispatchtest.Intent("till/act", step, `{"amount":1}`)
}

const token = "token-9d41c07e"

var (
	payload = json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`)
	exact   = json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`)
)

const conformingTool = `{response: {ref: .structured.id, rules: [
	{when: '.code == -32029', outcome: throttled, error: slow_down},
	{when: '.code == -32010', outcome: in_flight, error: busy}]}}`

func TestTheAdapterConformsOverHTTP(t *testing.T) {
	conforms := func(name string, options endpointOptions) {
		t.Run(name, func(t *testing.T) {
			dispatchtest.Conform(t, dispatchtest.Subject{
				Kind:  mcp.Kind(),
				Start: func(t *testing.T) dispatchtest.Counterpart { return endpointCounterpart(t, options) },
			})
		})
	}
	for _, wire := range dispatchtest.Wires() {
		conforms("current protocol over "+string(wire), endpointOptions{wire: wire, http: stateless.http})
	}
	conforms("sessions", endpointOptions{wire: dispatchtest.Plain, versions: []string{legacy}})
	conforms("sessions, answering in JSON", endpointOptions{wire: dispatchtest.Plain, versions: []string{legacy}, http: sdk.StreamableHTTPOptions{JSONResponse: true}})
}

func endpointCounterpart(t *testing.T, options endpointOptions) dispatchtest.Counterpart {
	e := startEndpoint(t, options)
	gate := dispatchtest.OpenGate(t, e.address, nil)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	return dispatchtest.Counterpart{
		Settings: "{url: '" + options.wire.URL(gate.Address) + "/mcp', headers: {Authorization: Bearer " + token + "}}",
		Tool:     conformingTool,
		TLS:      options.wire.ClientTLS(t),
		Payload:  payload,
		Exact:    exact,
		Secrets:  []string{token},
		Received: e.calls,
		Enter: func(situation dispatchtest.Situation) {
			if situation == dispatchtest.Unreachable {
				gate.Shut()
				return
			}
			gate.Open()
			e.enter(situation, release)
		},
	}
}

func (e *endpoint) enter(situation dispatchtest.Situation, release <-chan struct{}) {
	e.takeCalls(map[dispatchtest.Situation]http.HandlerFunc{
		dispatchtest.Throttling: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		dispatchtest.Rejecting:  faulting(-32602, "no such account"),
		dispatchtest.Severing:   sever,
		dispatchtest.Busy:       faulting(busyCode, "still at it"),
		dispatchtest.Silent: func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		},
		dispatchtest.Babbling: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "220 mail.example ESMTP\r\n")
		},
	}[situation])
}

func TestTheAdapterConformsOverStdio(t *testing.T) {
	dispatchtest.Conform(t, dispatchtest.Subject{
		Kind: mcp.Kind(),
		Start: func(t *testing.T) dispatchtest.Counterpart {
			n := newNursery(t)
			return dispatchtest.Counterpart{
				Settings: n.settings(t, nil),
				Tool:     conformingTool,
				Payload:  payload,
				Exact:    exact,
				Secrets:  []string{token},
				Received: n.calls,
				Enter:    func(situation dispatchtest.Situation) { n.enter(t, situation) },
			}
		},
		Cannot: map[dispatchtest.Situation]string{dispatchtest.Forbidden: "the adapter connects to nothing; its child does"},
	})
}
