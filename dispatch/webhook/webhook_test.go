package webhook_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/webhook"
)

const (
	oldSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	newSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

func spec(settings, tool string) dispatch.Spec {
	return dispatch.Spec{Provider: "shop", Timeout: 10 * time.Second, Settings: dispatchtest.Block(settings), Tools: map[string]dispatch.ToolSpec{
		"order.paid": {Class: dispatch.KeyIdempotent, KeyTTL: time.Hour, Settings: dispatchtest.Block(tool)},
	}}
}

func request(payload string) dispatch.Request {
	return dispatchtest.Intent("shop/order.paid", "step-1", payload)
}

// message is a request as the receiver got it.
type message struct {
	address string
	header  http.Header
	body    []byte
}

// deliver dispatches the payload once, to a receiver at the address.
func deliver(t *testing.T, address, settings, tool, payload string) message {
	t.Helper()
	var got message
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = message{r.RequestURI, r.Header, body}
	}))
	adapter := dispatchtest.Build(t, webhook.New, spec("url: '"+baseURL+address+"'\n"+settings, tool))
	result := adapter.Dispatch(t.Context(), request(payload))
	if result.Outcome != dispatch.Completed {
		t.Fatalf("%+v", result)
	}
	return got
}

func verifies(t *testing.T, got message, secret string) bool {
	t.Helper()
	receiver, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return receiver.Verify(got.body, got.header) == nil
}

func TestAReceiverCanVerifyWhatItGets(t *testing.T) {
	t.Parallel()
	got := deliver(t, "/hooks/{x}?token=a{b}", "signing_secrets: ["+newSecret+"]", "", `{"b": 1.10, "a": 9007199254740993}`)
	if got.address != "/hooks/%7Bx%7D?token=a%7Bb%7D" {
		t.Errorf("address: %s", got.address)
	}
	if string(got.body) != `{"b": 1.10, "a": 9007199254740993}` || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("body: %s, %v", got.body, got.header)
	}
	if id := got.header.Get("webhook-id"); id != request("").IdempotencyKey {
		t.Errorf("id: %s", id)
	}
	if !verifies(t, got, newSecret) || verifies(t, got, oldSecret) {
		t.Error("the signature is not that of the secret")
	}
	got.body = append(got.body, ' ')
	if verifies(t, got, newSecret) {
		t.Error("the signature does not cover the body")
	}
}

func TestDuringARotationEitherSecretVerifies(t *testing.T) {
	t.Parallel()
	got := deliver(t, "", "signing_secrets: ["+newSecret+", "+oldSecret+"]", "", `{}`)
	if !verifies(t, got, newSecret) || !verifies(t, got, oldSecret) {
		t.Errorf("signatures: %s", got.header.Get("webhook-signature"))
	}
}

// The address of a receiver may be the only secret that a sender needs.
func TestAPreviewHidesTheAddress(t *testing.T) {
	t.Parallel()
	adapter := dispatchtest.Build(t, webhook.New, spec("{url: 'https://chat.example/hooks/T0/canary?token=canary', signing_secrets: ["+newSecret+"]}", "{map: '.sum + .payload.sum'}"))
	got, err := adapter.Preview(t.Context(), request(`{"sum": 5}`))
	if err != nil || strings.Contains(got, "canary") || !strings.HasPrefix(got, "POST https://chat.example/[hidden]?token=[hidden]\nContent-Type: application/json\n") ||
		!strings.Contains(got, "Webhook-Signature: [hidden]\n") || !strings.HasSuffix(got, "\n\n5") {
		t.Errorf("%q, %v", got, err)
	}
	adapter = dispatchtest.Build(t, webhook.New, spec("{url: 'https://chat.example/', signing_secrets: ["+newSecret+"]}", "{map: '.payload.sum - 1'}"))
	if got, err := adapter.Preview(t.Context(), request(`{"sum": "canary"}`)); err == nil || got != "" || strings.Contains(err.Error(), "canary") || !strings.HasPrefix(err.Error(), "map cannot be rendered: ") {
		t.Errorf("of a map that fails: %q, %v", got, err)
	}
}

func TestAnEventIsTheDataOfACloudEvent(t *testing.T) {
	t.Parallel()
	settings := "signing_secrets: [" + newSecret + "]\nenvelope: cloudevents\nsource: 'https://shop.example/\"\\(.payload)'"
	for name, test := range map[string]struct{ tool, typ, data string }{
		"as it is": {"", "shop/order.paid", `{"amount":9007199254740993}`},
		"mapped":   {"{type: com.example.paid, map: '.payload.amount'}", "com.example.paid", `9007199254740993`},
	} {
		got := deliver(t, "/", settings, test.tool, `{"amount": 9007199254740993}`)
		var event map[string]json.RawMessage
		if err := json.Unmarshal(got.body, &event); err != nil {
			t.Fatal(err)
		}
		for attribute, want := range map[string]string{
			"specversion": `"1.0"`, "id": `"` + request("").IdempotencyKey + `"`, "type": `"` + test.typ + `"`,
			"source": `"https://shop.example/\"\\(.payload)"`, "datacontenttype": `"application/json"`, "data": test.data,
		} {
			if string(event[attribute]) != want {
				t.Errorf("%s: %s is %s, want %s", name, attribute, event[attribute], want)
			}
		}
		if len(event) != 6 || got.header.Get("Content-Type") != "application/cloudevents+json" || !verifies(t, got, newSecret) {
			t.Errorf("%s: %s, %v", name, got.body, got.header)
		}
	}
}

func TestMistakesAreFoundBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	const url, signed = "url: https://shop.example/hooks\n", "signing_secrets: [" + newSecret + "]\n"
	dispatchtest.Refuses(t, webhook.Kind(), dispatchtest.Mistakes{
		"no url":                {signed, "", "url is missing"},
		"no http":               {"url: ftp://shop.example\n" + signed, "", "url is neither"},
		"credentials":           {"url: https://user:canary@shop.example\n" + signed, "", "url carries credentials"},
		"fragment":              {"url: https://shop.example/#x\n" + signed, "", "url has a fragment"},
		"a parameter twice":     {"url: https://shop.example/?a=1&a=2\n" + signed, "", "twice: a"},
		"no secret":             {url, "", "signing_secrets is missing"},
		"no base64":             {url + "signing_secrets: ['whsec_canary!']", "", "signing_secrets.0 is not whsec_"},
		"a short secret":        {url + "signing_secrets: [" + newSecret + ", whsec_aHVudGVyMg==]", "", "signing_secrets.1 is not whsec_"},
		"no such envelope":      {url + signed + "envelope: letter", "", "envelope is neither"},
		"no source":             {url + signed + "envelope: cloudevents", "", "source is missing"},
		"source of nothing":     {url + signed + "source: https://shop.example", "", "source has a meaning only"},
		"type of nothing":       {url + signed, "type: paid", "tool act: type has a meaning only"},
		"map that is no jq":     {url + signed + "envelope: cloudevents\nsource: x", "map: '.a}, {b: 1'", "map: jq does not parse"},
		"a header of the key":   {url + signed + "headers: {webhook-id: canary}", "", "carries the idempotency key"},
		"rule without a result": {url + signed, "response: {rules: [{when: '.status == 200', outcome: maybe}]}", "response.rules.0"},
	})
}

func TestTheWebhookAdapterConforms(t *testing.T) {
	for name, envelope := range map[string]string{
		"bare":       "",
		"CloudEvent": ", envelope: cloudevents, source: 'https://shop.example'",
	} {
		for _, wire := range dispatchtest.Wires() {
			t.Run(name+" over "+string(wire), func(t *testing.T) {
				dispatchtest.Conform(t, dispatchtest.Subject{
					Kind: webhook.Kind(),
					Start: func(t *testing.T) dispatchtest.Counterpart {
						receiver := dispatchtest.StartHTTP(t, wire, "Webhook-Id")
						return dispatchtest.Counterpart{
							Settings: "{url: '" + receiver.URL + "/hooks', signing_secrets: [" + newSecret + ", " + oldSecret + "]" + envelope + "}",
							Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload"}`),
							Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890}`),
							TLS:      wire.ClientTLS(t),
							Secrets:  []string{oldSecret, newSecret},
							Received: receiver.Received,
							Enter:    receiver.Enter,
						}
					},
				})
			})
		}
	}
}
