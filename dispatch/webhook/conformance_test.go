package webhook_test

import (
	"encoding/json"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/webhook"
)

func TestTheWebhookAdapterConforms(t *testing.T) {
	for name, envelope := range map[string]string{
		"bare":       "",
		"CloudEvent": ", envelope: cloudevents, source: 'https://shop.example'",
	} {
		t.Run(name, func(t *testing.T) {
			dispatchtest.Conform(t, dispatchtest.Subject{
				Kind: webhook.Kind(),
				Start: func(t *testing.T) dispatchtest.Counterpart {
					receiver := dispatchtest.StartHTTP(t, "Webhook-Id")
					return dispatchtest.Counterpart{
						Settings: "{url: 'http://" + receiver.Address + "/hooks', signing_secrets: [" + newSecret + ", " + oldSecret + "]" + envelope + "}",
						Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload"}`),
						Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890}`),
						Secrets:  []string{oldSecret, newSecret},
						Received: receiver.Received,
						Enter:    receiver.Enter,
					}
				},
			})
		})
	}
}
