package adapter

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// For any values from an agent, a message has each header once and on one line, and carries the payload byte for
// byte.
func FuzzAMessageHasNoHeaderButItsOwn(f *testing.F) {
	for _, seed := range []string{"plain", "", "a\r\nNats-Msg-Id: x", "\x00", "\x7f", "\x85\u0085\u2028", "\xff", "\t", "é"} {
		f.Add(seed, "invoice_442", "traceparent")
		f.Add("x", seed, seed)
	}
	form, err := CompileForm(map[string]string{"X-Value": "{.payload.value}", "X-Scope": "s-{.business_scope}", "X-Plain": "{{}}"}, "", "Nats-Msg-Id")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, value, scope, name string) {
		payload, err := json.Marshal(map[string]string{"value": value})
		if err != nil {
			t.Fatal(err)
		}
		request := dispatch.Request{Payload: payload, Tuple: dispatch.Tuple{BusinessScope: scope}, Headers: map[string]string{name: value, "Baggage": scope}}
		input, err := render.Input(request)
		if err != nil {
			t.Fatal(err)
		}
		message, err := form.Write(t.Context(), request, input)
		if err != nil {
			return
		}
		if !bytes.Equal(message.Body, payload) {
			t.Errorf("%q is sent as %q", payload, message.Body)
		}
		own := map[string]bool{"X-Value": true, "X-Scope": true, "X-Plain": true, "traceparent": true, "tracestate": true, "baggage": true}
		for _, header := range message.Headers {
			if !own[header.Name] || bytes.ContainsAny([]byte(header.Value), "\r\n\x00") {
				t.Errorf("the header %q: %q, once or again", header.Name, header.Value)
			}
			own[header.Name] = false
		}
	})
}
