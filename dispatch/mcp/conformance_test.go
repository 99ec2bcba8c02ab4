package mcp_test

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/mcp"
)

const token = "token-9d41c07e"

var (
	payload = json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`)
	exact   = json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`)
)

const conformingTool = `{response: {ref: .structured.id, rules: [
	{when: '.code == -32029', outcome: throttled, error: slow_down},
	{when: '.code == -32010', outcome: in_flight, error: busy}]}}`

func TestTheAdapterConformsOverHTTP(t *testing.T) {
	for name, options := range map[string]endpointOptions{
		"current protocol":            stateless,
		"sessions":                    {versions: []string{legacy}},
		"sessions, answering in JSON": {versions: []string{legacy}, http: sdk.StreamableHTTPOptions{JSONResponse: true}},
	} {
		t.Run(name, func(t *testing.T) {
			dispatchtest.Conform(t, dispatchtest.Subject{
				Kind:  mcp.Kind(),
				Start: func(t *testing.T) dispatchtest.Counterpart { return endpointCounterpart(t, options) },
			})
		})
	}
}

func endpointCounterpart(t *testing.T, options endpointOptions) dispatchtest.Counterpart {
	e := startEndpoint(t, options)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	return dispatchtest.Counterpart{
		Settings: "{url: '" + e.url() + "', headers: {Authorization: Bearer " + token + "}}",
		Tool:     conformingTool,
		Payload:  payload,
		Exact:    exact,
		Secrets:  []string{token},
		Received: e.calls,
		Enter:    func(situation dispatchtest.Situation) { e.enter(t, situation, release) },
	}
}

func (e *endpoint) enter(t *testing.T, situation dispatchtest.Situation, release <-chan struct{}) {
	if situation == dispatchtest.Unreachable {
		e.close()
		return
	}
	if e.isClosed() {
		e.open(t, e.address)
	}
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

func TestAnUnknownOperationIsNotSent(t *testing.T) {
	t.Parallel()
	unknown := intent("1")
	unknown.Tuple.ToolName = "till/refund"
	got := adapterFor(t, "{url: 'http://127.0.0.1:1'}", "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), unknown)
	if got.Outcome != dispatch.NotSent || got.ErrorClass != "unconfigured_tool" {
		t.Errorf("got %+v", got)
	}
}
