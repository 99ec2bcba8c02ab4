package rabbitmq_test

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestAMessageSaysWhatItIs(t *testing.T) {
	t.Parallel()
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	adapter := newAdapter(t, spec(broker.URL, topology.tool()+`
headers: {tenant: "t-{.payload.tenant}", scope: "{.business_scope}"}
map: '{id: .payload.id, key}'
content_type: application/vnd.example+json`))
	intent := request(`{"id": 9007199254740993, "tenant": 7}`)
	intent.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Cookie": "no"}

	expect(t, adapter.Dispatch(t.Context(), intent), dispatch.Completed, "")

	stored := topology.stored(t)
	if len(stored) != 1 {
		t.Fatalf("%d messages, want 1", len(stored))
	}
	got := stored[0]
	if got.MessageId != intent.IdempotencyKey || got.AppId != "drainer" || got.DeliveryMode != amqp.Persistent || got.ContentType != "application/vnd.example+json" {
		t.Errorf("properties: %+v", got)
	}
	if want := `{"id":9007199254740993,"key":"` + intent.IdempotencyKey + `"}`; string(got.Body) != want {
		t.Errorf("body %s, want %s", got.Body, want)
	}
	if len(got.Headers) != 3 || got.Headers["tenant"] != "t-7" || got.Headers["scope"] != "invoice_442" || got.Headers["traceparent"] != intent.Headers["traceparent"] {
		t.Errorf("headers: %v", got.Headers)
	}
}

func TestThePayloadIsPublishedByteForByte(t *testing.T) {
	t.Parallel()
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	adapter := newAdapter(t, spec(broker.URL, topology.tool()))
	payload := `{"b": 1.10, "a":"` + long(300_000) + `"}` // of several frames
	expect(t, adapter.Dispatch(t.Context(), request(payload)), dispatch.Completed, "")
	if stored := topology.stored(t); len(stored) != 1 || string(stored[0].Body) != payload || stored[0].ContentType != "application/json" {
		t.Errorf("%d messages, or another body", len(stored))
	}
}

func TestManyAtOnceShareAConnection(t *testing.T) {
	t.Parallel()
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	specification := spec(broker.URL, topology.tool())
	var dials counter
	specification.Network = dispatch.NewNetwork(func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.add()
		return dispatch.PlainDialer().DialContext(ctx, network, address)
	}, nil)
	adapter := newAdapter(t, specification)
	const messages = 200
	keys := map[string]bool{}
	results := make(chan dispatch.Result, messages)
	for range messages {
		intent := request(`{}`)
		keys[intent.IdempotencyKey] = true
		go func() { results <- adapter.Dispatch(t.Context(), intent) }()
	}
	for range messages {
		expect(t, <-results, dispatch.Completed, "")
	}
	for _, message := range topology.stored(t) {
		delete(keys, message.MessageId)
	}
	if len(keys) > 0 || dials.value() != 1 {
		t.Errorf("%d messages are missing; %d connections, want 1", len(keys), dials.value())
	}
}

func TestTLSIsSpokenWithTheProvidersAuthority(t *testing.T) {
	t.Parallel()
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	trusting := spec(broker.TLSURL, topology.tool())
	trusting.Network = dispatch.NewNetwork(nil, &tls.Config{RootCAs: broker.Roots, MinVersion: tls.VersionTLS12})
	expect(t, newAdapter(t, trusting).Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	expect(t, newAdapter(t, spec(broker.TLSURL, topology.tool())).Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "tls")
	if stored := topology.stored(t); len(stored) != 1 {
		t.Errorf("%d messages, want 1", len(stored))
	}
}

func TestNothingIsSentWithoutASession(t *testing.T) {
	t.Parallel()
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	closed := startProxy(t, broker.URL)
	closed.close()
	mute := listen(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)); <-t.Context().Done() })
	babbling := listen(t, func(conn net.Conn) { _, _ = conn.Write([]byte("220 mail.example.com ESMTP\r\n")) })
	for name, test := range map[string]struct{ url, class string }{
		"no listener":      {closed.url(broker.URL), "dial"},
		"no such name":     {"amqp://host.invalid", "dns"},
		"another password": {strings.Replace(broker.URL, "s3cret", "other", 1), "auth"},
		"no such vhost":    {broker.URL + "/other", "amqp_530"},
		"mute":             {"amqp://" + mute, "timeout"},
		"another protocol": {"amqp://" + babbling, "protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			specification := spec(test.url, topology.tool())
			specification.Timeout = 5 * time.Second // the broker takes three to refuse a password
			got := newAdapter(t, specification).Dispatch(t.Context(), request(`{}`))
			want := dispatch.NotSent
			if test.class == "auth" {
				want = dispatch.CredentialsRefused
			}
			expect(t, got, want, test.class)
			if got.Problem != nil {
				t.Errorf("the broker's words are kept: %+v", got.Problem)
			}
		})
	}
}

func listen(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	return strings.TrimPrefix(dispatchtest.ServeConns(t, func(_ int, conn net.Conn) { serve(conn) }), "http://")
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *counter) value() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}
