package rabbitmq_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/rabbitmq"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// topology is an exchange of the test's own, bound to a queue.
type topology struct {
	name    string // of both, and the routing key
	channel *amqp.Channel

	mu       sync.Mutex
	received []amqp.Delivery
}

func declare(t *testing.T, broker *drainertest.Broker) *topology {
	t.Helper()
	connection, err := amqp.Dial(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	o := &topology{name: "test-" + uuid.NewString(), channel: channel}
	o.exchange(t, false)
	if _, err := channel.QueueDeclare(o.name, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	o.bind(t)
	t.Cleanup(func() {
		_, _ = channel.QueueDelete(o.name, false, false, false)
		_ = channel.ExchangeDelete(o.name, false, false)
	})
	return o
}

// exchange declares the exchange anew; nobody may publish to an internal one.
func (o *topology) exchange(t *testing.T, internal bool) {
	t.Helper()
	if err := o.channel.ExchangeDelete(o.name, false, false); err != nil {
		t.Fatal(err)
	}
	if err := o.channel.ExchangeDeclare(o.name, "direct", true, false, internal, false, nil); err != nil {
		t.Fatal(err)
	}
}

func (o *topology) bind(t *testing.T) {
	t.Helper()
	if err := o.channel.QueueBind(o.name, o.name, o.name, false, nil); err != nil {
		t.Fatal(err)
	}
}

func (o *topology) unbind(t *testing.T) {
	t.Helper()
	if err := o.channel.QueueUnbind(o.name, o.name, o.name, nil); err != nil {
		t.Fatal(err)
	}
}

// stored is every message that the queue has had so far.
func (o *topology) stored(t *testing.T) []amqp.Delivery {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		message, ok, err := o.channel.Get(o.name, true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return o.received[:len(o.received):len(o.received)]
		}
		o.received = append(o.received, message)
	}
}

func (o *topology) tool() string { return "exchange: " + o.name + "\nrouting_key: " + o.name }

func spec(url, tool string) dispatch.Spec {
	return dispatch.Spec{
		Provider: "events",
		Timeout:  10 * time.Second,
		Settings: dispatchtest.Block("url: " + url),
		Tools:    map[string]dispatch.ToolSpec{"publish": {Class: dispatch.KeyIdempotent, Settings: dispatchtest.Block(tool)}},
	}
}

func newAdapter(t *testing.T, spec dispatch.Spec) *rabbitmq.Adapter {
	t.Helper()
	adapter, err := rabbitmq.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = adapter.Close() })
	return adapter
}

// request is an intent of its own each time.
func request(payload string) dispatch.Request {
	tuple := dispatch.Tuple{AgentRunID: uuid.NewString(), StepID: "step-1", ToolName: "events/publish", BusinessScope: "invoice_442"}
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1}
}

func expect(t *testing.T, got dispatch.Result, outcome dispatch.Outcome, class string) {
	t.Helper()
	if got.Outcome != outcome || got.ErrorClass != class {
		t.Errorf("%s %q (%+v), want %s %q", got.Outcome, got.ErrorClass, got.Problem, outcome, class)
	}
}

func long(octets int) string { return strings.Repeat("x", octets) }
