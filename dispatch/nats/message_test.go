package nats_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestAMessageCarriesThePayloadByteForByteAndTheKey(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	traced := request("{\"b\": 1.0,\n  \"a\": 12345678901234567890}")
	traced.Headers = map[string]string{"Traceparent": "00-ab", "tracestate": "s=1", "authorization": "forged"}

	got := adapterFor(t, c).Dispatch(t.Context(), traced)

	wants(t, got, dispatch.Completed, "")
	if got.ProviderRef != "CHARGES/1" || string(got.Response) != `{"stream":"CHARGES","seq":1}` || got.Replayed {
		t.Errorf("got %+v, response %s", got, got.Response)
	}
	message := c.stored(t)[0]
	if message.Subject != subject || string(message.Data) != string(traced.Payload) {
		t.Errorf("%s: %q", message.Subject, message.Data)
	}
	if message.Header.Get("Nats-Msg-Id") != traced.IdempotencyKey || message.Header.Get("traceparent") != "00-ab" || message.Header.Get("tracestate") != "s=1" || len(message.Header) != 3 {
		t.Errorf("headers %v", message.Header)
	}
}

func TestASecondAttemptIsRecognisedByItsKey(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	first := adapterFor(t, c).Dispatch(t.Context(), request(`{}`))
	second := adapterFor(t, c).Dispatch(t.Context(), request(`{}`)) // of another worker

	wants(t, second, dispatch.Completed, "")
	if !second.Replayed || second.ProviderRef != first.ProviderRef {
		t.Errorf("first %+v, second %+v", first, second)
	}
	var position struct{ Duplicate bool }
	if err := json.Unmarshal(second.Response, &position); err != nil || !position.Duplicate {
		t.Errorf("response %s", second.Response)
	}
	if messages := c.stored(t); len(messages) != 1 {
		t.Errorf("%d messages", len(messages))
	}
}

func TestHeadersAndBodyAreTheConfigurations(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	adapter := newAdapter(t, spec(c.ClientURL(), "", `
subject: charges.created
stream: CHARGES
headers: {event: "charge {.payload.id}"}
map: "{id: .payload.id, key: .key}"
`))
	wants(t, adapter.Dispatch(t.Context(), request(`{"id": 9007199254740993}`)), dispatch.Completed, "")
	message := c.stored(t)[0]
	if want := `{"id":9007199254740993,"key":"` + tuple.IdempotencyKey() + `"}`; string(message.Data) != want {
		t.Errorf("data %s, want %s", message.Data, want)
	}
	if message.Header.Get("event") != "charge 9007199254740993" {
		t.Errorf("headers %v", message.Header)
	}
}

func TestAMappedNullIsAnEmptyMessage(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	adapter := newAdapter(t, spec(c.ClientURL(), "", `{subject: charges.created, map: "null"}`))
	wants(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	if message := c.stored(t)[0]; len(message.Data) != 0 {
		t.Errorf("data %q", message.Data)
	}
}

func TestWhatCannotBeRenderedIsRejectedAndNotSent(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	for name, tool := range map[string]string{
		"map":               `{subject: charges.created, map: "error"}`,
		"control character": `{subject: charges.created, headers: {x: "{.payload.line}"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			got := newAdapter(t, spec(c.ClientURL(), "", tool)).Dispatch(t.Context(), request(`{"line":"a\r\nb"}`))
			wants(t, got, dispatch.Rejected, "unrenderable_request")
		})
	}
	if messages := c.stored(t); len(messages) != 0 {
		t.Errorf("%d messages", len(messages))
	}
}

func TestNothingIsSentToAStreamThatForgetsTheKeyTooSoon(t *testing.T) {
	t.Parallel()
	c := startWithStream(t, func(config *jetstream.StreamConfig) { config.Duplicates = 2 * time.Minute })
	adapter := adapterFor(t, c)

	wants(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "duplicate_window_too_short")
	if messages := c.stored(t); len(messages) != 0 {
		t.Errorf("%d messages", len(messages))
	}

	c.update(t, func(config *jetstream.StreamConfig) { config.Duplicates = 24 * time.Hour })
	wants(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
}

func TestTheWindowIsThatOfTheStreamThatIsNamed(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	wants(t, newAdapter(t, spec(c.ClientURL(), "", `{subject: charges.created, stream: OTHER}`)).Dispatch(t.Context(), request(`{}`)),
		dispatch.NotSent, "stream_not_found")
}

func TestAToolWhoseKeyNobodyNeedsToRecogniseSendsWhateverTheWindow(t *testing.T) {
	t.Parallel()
	c := startWithStream(t, func(config *jetstream.StreamConfig) { config.Duplicates = time.Second })
	for _, class := range []dispatch.Class{dispatch.NaturallyIdempotent, dispatch.NonIdempotent} {
		adapter := newAdapter(t, ofClass(class, spec(c.ClientURL(), "", "subject: "+subject)))
		wants(t, adapter.Dispatch(t.Context(), intent(string(class))), dispatch.Completed, "")
	}
}
