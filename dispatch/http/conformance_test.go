package http_test

import (
	"encoding/json"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
)

func TestTheHTTPAdapterConforms(t *testing.T) {
	for class, tool := range map[dispatch.Class]string{
		dispatch.KeyIdempotent:       "{path: /v1/charges, response: {ref: .id}}",
		dispatch.NaturallyIdempotent: "{method: PUT, path: '/v1/charges/{.key}', response: {ref: .id}}",
	} {
		t.Run(string(class), func(t *testing.T) {
			dispatchtest.Conform(t, dispatchtest.Subject{
				Kind:  dispatchhttp.Kind(),
				Class: class,
				Start: func(t *testing.T) dispatchtest.Counterpart { return startUpstream(t, tool) },
			})
		})
	}
}

const token = "token-9d41c07e"

func startUpstream(t *testing.T, tool string) dispatchtest.Counterpart {
	upstream := dispatchtest.StartHTTP(t, "Idempotency-Key")
	return dispatchtest.Counterpart{
		Settings: "{base_url: 'http://" + upstream.Address + "', headers: {Authorization: Bearer " + token + "}}",
		Tool:     tool,
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`),
		Secrets:  []string{token},
		Received: upstream.Received,
		Enter:    upstream.Enter,
	}
}
