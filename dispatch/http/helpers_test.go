package http_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/agentoutbox/drainer/dispatch"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
)

// block is configuration as a user writes it.
type block string

func (b block) Decode(into any) error {
	return yaml.UnmarshalWithOptions([]byte(b), into, yaml.Strict())
}

var tuple = dispatch.Tuple{AgentRunID: "run-001", StepID: "step-1", ToolName: "stripe/charge", BusinessScope: "invoice_442"}

func request(payload string) dispatch.Request {
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1}
}

func spec(baseURL, settings, tool string) dispatch.Spec {
	return dispatch.Spec{
		Provider: "stripe",
		Timeout:  10 * time.Second,
		Settings: block("base_url: " + baseURL + "\n" + settings),
		Tools:    map[string]dispatch.ToolSpec{"charge": {Class: dispatch.KeyIdempotent, Settings: block(tool)}},
	}
}

func newAdapter(t *testing.T, spec dispatch.Spec) *dispatchhttp.Adapter {
	t.Helper()
	adapter, err := dispatchhttp.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = adapter.Close() })
	return adapter
}

// reply is what a provider answers.
type reply struct {
	status  int
	headers map[string]string
	body    string
}

// answer dispatches once to a provider that answers so.
func answer(t *testing.T, reply reply, settings string, tool dispatch.ToolSpec) dispatch.Result {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for name, value := range reply.headers {
			w.Header().Set(name, value)
		}
		w.WriteHeader(reply.status)
		_, _ = io.WriteString(w, reply.body)
	}))
	defer server.Close()
	spec := spec(server.URL, settings, "")
	spec.Tools["charge"] = tool
	return newAdapter(t, spec).Dispatch(t.Context(), request(`{}`))
}
