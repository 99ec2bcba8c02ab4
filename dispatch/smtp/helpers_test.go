package smtp_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/smtp"
)

const aTool = `
to: ["{.payload.to}"]
subject: "{.payload.subject}"
text: "{.payload.text}"`

const aPayload = `{"to": "ada@example.com", "subject": "Invoice 442", "text": "Dear Ada,\n.\nbye"}`

func spec(settings, tool string) dispatch.Spec {
	return dispatch.Spec{
		Provider: "mail",
		Timeout:  5 * time.Second,
		Settings: dispatchtest.Block(settings),
		Tools:    map[string]dispatch.ToolSpec{"send": {Class: dispatch.NonIdempotent, Settings: dispatchtest.Block(tool)}},
	}
}

// plainly are the settings for a server on this machine.
func plainly(address string) string {
	return "server: " + address + "\nsecurity: none\nfrom: Billing <billing@example.org>"
}

func newAdapter(t *testing.T, spec dispatch.Spec) *smtp.Adapter {
	t.Helper()
	adapter, err := smtp.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return adapter
}

// request is an intent of its own each time.
func request(payload string) dispatch.Request {
	tuple := dispatch.Tuple{AgentRunID: uuid.NewString(), StepID: "step-1", ToolName: "mail/send", BusinessScope: "invoice_442"}
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1}
}

func expect(t *testing.T, got dispatch.Result, outcome dispatch.Outcome, class string) {
	t.Helper()
	if got.Outcome != outcome || got.ErrorClass != class {
		t.Errorf("%s %q (%+v), want %s %q", got.Outcome, got.ErrorClass, got.Problem, outcome, class)
	}
}

func long(octets int) string { return strings.Repeat("x", octets) }
