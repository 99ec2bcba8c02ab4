package rabbitmq_test

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestTheBrokersRefusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		payload string
		prepare func(*testing.T, *topology)
		outcome dispatch.Outcome
		class   string
		stored  bool
	}{
		"no queue is bound":                 {`{}`, func(t *testing.T, o *topology) { o.unbind(t) }, dispatch.Throttled, "unroutable", false},
		"there is no such exchange":         {`{}`, drop, dispatch.Throttled, "no_exchange", false},
		"publishing there is not allowed":   {`{}`, func(t *testing.T, o *topology) { o.exchange(t, true) }, dispatch.Forbidden, "access_refused", false},
		"the body is too long":              {`"` + long(drainertest.MaxMessageSize) + `"`, nil, dispatch.Rejected, "precondition_failed", false},
		"the queue is full, and refuses":    {`{}`, fill, dispatch.Ambiguous, "nacked", false},
		"one queue is full, another is not": {`{}`, fillAnother, dispatch.Ambiguous, "nacked", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := drainertest.RabbitMQ(t)
			topology := declare(t, broker)
			if test.prepare != nil {
				test.prepare(t, topology)
			}
			adapter := newAdapter(t, spec(broker.URL, topology.tool()))
			intent := request(test.payload)
			got := adapter.Dispatch(t.Context(), intent)
			dispatchtest.Expect(t, got, test.outcome, test.class)
			if missing := test.class == "unroutable" || test.class == "no_exchange"; got.OfOperation != missing {
				t.Errorf("it speaks for this operation alone: %t, want %t", got.OfOperation, missing)
			}
			isOurs := func(message amqp.Delivery) bool { return message.MessageId == intent.IdempotencyKey }
			if stored := slices.ContainsFunc(topology.stored(t), isOurs); stored != test.stored {
				t.Errorf("stored: %t, want %t", stored, test.stored)
			}
		})
	}
}

func drop(t *testing.T, o *topology) {
	if err := o.channel.ExchangeDelete(o.name, false, false); err != nil {
		t.Fatal(err)
	}
}

// fill replaces the queue by a full one.
func fill(t *testing.T, o *topology) {
	if _, err := o.channel.QueueDelete(o.name, false, false, false); err != nil {
		t.Fatal(err)
	}
	full(t, o, o.name)
}

// fillAnother binds a full queue beside the one that has room.
func fillAnother(t *testing.T, o *topology) { full(t, o, o.name+"-full") }

func full(t *testing.T, o *topology, queue string) {
	limits := amqp.Table{amqp.QueueMaxLenArg: int64(1), amqp.QueueOverflowArg: amqp.QueueOverflowRejectPublish}
	if _, err := o.channel.QueueDeclare(queue, true, false, false, false, limits); err != nil {
		t.Fatal(err)
	}
	if err := o.channel.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirm, err := o.channel.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
	if err != nil || !confirm.Wait() {
		t.Fatal("the queue has no room for one message: ", err)
	}
	if err := o.channel.QueueBind(queue, o.name, o.name, false, nil); err != nil {
		t.Fatal(err)
	}
}

// The exception that one message causes must say nothing of the others, which
// are under way on the same connection.
func TestARefusalConcernsOneMessage(t *testing.T) {
	t.Parallel()
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	specification := spec(broker.URL, topology.tool())
	for name, settings := range map[string]string{"lost": "exchange: none-" + topology.name, "unbound": "exchange: " + topology.name + "\nrouting_key: none"} {
		specification.Tools[name] = dispatch.ToolSpec{Class: dispatch.KeyIdempotent, Settings: dispatchtest.Block(settings)}
	}
	adapter := newAdapter(t, specification)
	var group sync.WaitGroup
	for i := range 150 {
		group.Go(func() {
			intent := request(`{}`)
			switch i % 3 {
			case 0:
				dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent), dispatch.Completed, "")
			case 1:
				intent.Tuple.ToolName = "events/lost"
				dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent), dispatch.Throttled, "no_exchange")
			case 2:
				intent.Tuple.ToolName = "events/unbound"
				dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent), dispatch.Throttled, "unroutable")
			}
		})
	}
	group.Wait()
	if stored := topology.stored(t); len(stored) != 50 {
		t.Errorf("%d messages are stored, want 50", len(stored))
	}
}

func TestAMessageWithoutItsConfirmIsAmbiguous(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answers func(net.Conn, []byte) error
		class   string
	}{
		"cut":                     {sever, "reset"},
		"never answered":          {swallow, "timeout"},
		"answered by babble":      {babble, "reset"},
		"the broker is shut down": {closing(amqp.ConnectionForced), "connection_forced"},
		"the permission is gone":  {closing(amqp.AccessRefused), "access_refused"}, // it may concern all messages, from an unknown time on
		"the broker fails inside": {closing(amqp.InternalError), "amqp_541"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := drainertest.RabbitMQ(t)
			topology := declare(t, broker)
			proxy := startProxy(t, broker.URL)
			specification := spec(proxy.url(broker.URL), topology.tool())
			specification.Timeout = 2 * time.Second
			adapter := newAdapter(t, specification)
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")

			proxy.lose(test.answers)
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Ambiguous, test.class)
			if stored := topology.stored(t); len(stored) != 2 {
				t.Errorf("%d messages are stored, want 2", len(stored))
			}

			proxy.lose(nil)
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
		})
	}
}

// closing ends the whole connection with a reply code.
func closing(code uint16) func(net.Conn, []byte) error {
	return func(conn net.Conn, _ []byte) error {
		_, err := conn.Write([]byte{
			1, 0, 0, 0, 0, 0, 11, // a method on channel 0
			0, 10, 0, 50, // connection.close
			byte(code >> 8), byte(code),
			0, 0, 0, 0, 0, // no text, and no method that failed
			0xce,
		})
		return err
	}
}

func TestACancelledDispatchPublishesNothing(t *testing.T) {
	t.Parallel()
	topology, adapter := ready(t)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		for range 200 { // a publisher that looks too late would send one of them now and then
			dispatchtest.Expect(t, adapter.Dispatch(cancelled, request(`{}`)), dispatch.NotSent, "cancelled")
		}
		dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	}
	if stored := topology.stored(t); len(stored) != 10 {
		t.Errorf("%d messages are stored, want 10", len(stored))
	}
}

// A connection may be cut anywhere. The queue must agree with every outcome.
func TestOutcomesHoldWhereverTheConnectionIsCut(t *testing.T) {
	t.Parallel()
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	proxy := startProxy(t, broker.URL)
	specification := spec(proxy.url(broker.URL), topology.tool())
	specification.Timeout = 5 * time.Second
	outcomes := map[string]dispatch.Result{}
	var mu sync.Mutex
	for range 60 {
		// A handshake takes about 450 bytes from the client and 700 from the broker.
		proxy.cut(rand.Int64N(20_000), rand.Int64N(2_000))
		adapter := newAdapter(t, specification)
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				intent := request(`{"a": "` + long(rand.IntN(3_000)) + `"}`)
				result := adapter.Dispatch(t.Context(), intent)
				mu.Lock()
				defer mu.Unlock()
				outcomes[intent.IdempotencyKey] = result
			})
		}
		group.Wait()
		_ = adapter.Close()
	}
	settle(t, proxy)
	stored := map[string]bool{}
	for _, message := range topology.stored(t) {
		stored[message.MessageId] = true
	}
	count := map[dispatch.Outcome]int{}
	for key, result := range outcomes {
		count[result.Outcome]++
		switch {
		case result.Outcome == dispatch.Completed && !stored[key]:
			t.Errorf("%+v, but it is not stored", result)
		case result.Outcome == dispatch.NotSent && stored[key]:
			t.Errorf("%+v, but it is stored", result)
		case result.Outcome == dispatch.Rejected, result.Outcome == dispatch.Throttled:
			t.Errorf("%+v, but the broker refused nothing", result)
		}
	}
	if count[dispatch.Completed] == 0 || count[dispatch.NotSent] == 0 || count[dispatch.Ambiguous] == 0 {
		t.Errorf("the cuts do not reach everywhere: %v", count)
	}
	t.Log(count, len(stored), "stored")
}

// settle waits until the broker has read all that it was sent: it closes a
// connection when it has.
func settle(t *testing.T, proxy *proxy) {
	t.Helper()
	drainertest.Eventually(t, "the broker closes every connection", func() bool { return proxy.brokersLeft() == 0 })
}

// Not parallel: the alarm holds for the whole broker.
func TestAnAlarmThrottlesAfterTheMessageThatFindsItOut(t *testing.T) {
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	specification := spec(broker.URL, topology.tool())
	specification.Timeout = time.Second
	adapter := newAdapter(t, specification)
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	t.Cleanup(func() { broker.Control(t, "set_vm_memory_high_watermark", "0.4") })
	broker.Control(t, "set_vm_memory_high_watermark", "0.00000001")

	// The broker notifies a publisher of its alarm when it publishes.
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Ambiguous, "blocked")
	for range 3 {
		dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Throttled, "blocked")
	}

	broker.Control(t, "set_vm_memory_high_watermark", "0.4")
	var last dispatch.Result
	drainertest.Eventually(t, "the adapter publishes after the alarm", func() bool {
		last = adapter.Dispatch(t.Context(), request(`{}`))
		return last.Outcome == dispatch.Completed
	})
	if stored := topology.stored(t); len(stored) != 3 {
		t.Errorf("%d messages are stored, want the first, the one in doubt and the last", len(stored))
	}
}

func TestAMessageSaysWhatItIs(t *testing.T) {
	t.Parallel()
	topology, adapter := ready(t, `
headers: {tenant: "t-{.payload.tenant}", scope: "{.business_scope}"}
map: '{id: .payload.id, key}'
content_type: application/vnd.example+json`)
	intent := request(`{"id": 9007199254740993, "tenant": 7}`)
	intent.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Cookie": "no"}

	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent), dispatch.Completed, "")

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
	topology, adapter := ready(t)
	payload := `{"b": 1.10, "a":"` + long(300_000) + `"}` // of several frames
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(payload)), dispatch.Completed, "")
	if stored := topology.stored(t); len(stored) != 1 || string(stored[0].Body) != payload || stored[0].ContentType != "application/json" {
		t.Errorf("%d messages, or another body", len(stored))
	}
}

func TestManyAtOnceShareAConnection(t *testing.T) {
	t.Parallel()
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	specification := spec(broker.URL, topology.tool())
	var dials atomic.Int64
	specification.Network = dispatch.NewNetwork(func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
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
		dispatchtest.Expect(t, <-results, dispatch.Completed, "")
	}
	for _, message := range topology.stored(t) {
		delete(keys, message.MessageId)
	}
	if len(keys) > 0 || dials.Load() != 1 {
		t.Errorf("%d messages are missing; %d connections, want 1", len(keys), dials.Load())
	}
}

func TestTLSIsSpokenWithTheProvidersAuthority(t *testing.T) {
	t.Parallel()
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	trusting := spec(broker.TLSURL, topology.tool())
	trusting.Network = dispatch.NewNetwork(nil, &tls.Config{RootCAs: broker.Roots, MinVersion: tls.VersionTLS12})
	dispatchtest.Expect(t, newAdapter(t, trusting).Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	dispatchtest.Expect(t, newAdapter(t, spec(broker.TLSURL, topology.tool())).Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "tls")
	if stored := topology.stored(t); len(stored) != 1 {
		t.Errorf("%d messages, want 1", len(stored))
	}
}

func TestNothingIsSentWithoutASession(t *testing.T) {
	t.Parallel()
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	closed := startProxy(t, broker.URL)
	closed.Shut()
	mute := dispatchtest.ServeConns(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)); <-t.Context().Done() })
	babbling := dispatchtest.ServeConns(t, func(conn net.Conn) { _, _ = conn.Write([]byte("220 mail.example.com ESMTP\r\n")) })
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
			specification.Timeout = 5 * time.Second // the broker takes three seconds to refuse a password
			got := newAdapter(t, specification).Dispatch(t.Context(), request(`{}`))
			want := dispatch.NotSent
			if test.class == "auth" {
				want = dispatch.CredentialsRefused
			}
			dispatchtest.Expect(t, got, want, test.class)
			if got.Problem != nil {
				t.Errorf("the broker's words are kept: %+v", got.Problem)
			}
		})
	}
}
