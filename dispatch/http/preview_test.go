package http_test

import (
	"strings"
	"testing"
)

// A header of the provider may be a credential, whatever its name is.
func TestAPreviewIsTheRequestWithoutCredentials(t *testing.T) {
	t.Parallel()
	adapter := newAdapter(t, spec("http://127.0.0.1:1/hooks/B0/", `headers: {Authorization: Bearer hunter2-hunter2, X-Shop: k3y}`,
		`{path: '/orders/{.payload.order}', query: {dry: '{.payload.dry}', api_key: k3y, of: 'k3y-{.key}'},
		headers: {X-Order: '{.payload.order}', X-Api-Key: k3y, X-Of: 'k3y-{.key}', X-Jq: '{"k3y" + .key}', user-agent: k3y}, map: '{sum: (.payload.sum + 0)}'}`))
	order := request(`{"order": "a b", "dry": "<1>", "sum": 12345678901234567890}`)
	order.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "baggage": "user=eve"}
	got, err := adapter.Preview(t.Context(), order)
	want := strings.Join([]string{
		"POST http://127.0.0.1:1/[hidden]/orders/a%20b?api_key=[hidden]&dry=%3C1%3E&of=[hidden]", "Authorization: [hidden]", "Baggage: [hidden]", "Content-Type: application/json",
		"Idempotency-Key: " + order.IdempotencyKey, "Traceparent: " + order.Headers["traceparent"], "User-Agent: [hidden]", "X-Api-Key: [hidden]", "X-Jq: [hidden]", "X-Of: [hidden]", "X-Order: a b",
		"X-Shop: [hidden]", "", `{"sum":12345678901234567890}`,
	}, "\n")
	if err != nil || got != want {
		t.Errorf("got  %q, %v\nwant %q", got, err, want)
	}
	for payload, want := range map[string]string{
		`{"order": "../secret-part"}`:                           "path cannot be rendered: .payload.order: ",
		`{"order": "a", "dry": {"secret-part": 1}}`:             "query.dry cannot be rendered: .payload.dry: ",
		`{"order": "a", "dry": "b", "sum": "secret-part"}`:      "map cannot be rendered: {sum: (.payload.sum + 0)}: cannot add a string",
		`{"order": "a", "dry": "b", "sum": 1, "secret-part": }`: "payload cannot be rendered: it cannot be read",
	} {
		if got, err := adapter.Preview(t.Context(), request(payload)); err == nil || got != "" || strings.Contains(err.Error(), "secret-part") || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("of what cannot be rendered: %q, %v", got, err)
		}
	}
	unknown := order
	unknown.Tuple.ToolName = "stripe/refund"
	if _, err := adapter.Preview(t.Context(), unknown); err == nil {
		t.Error("an unknown tool has a preview")
	}
}
