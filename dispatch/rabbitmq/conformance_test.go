package rabbitmq_test

import (
	"encoding/json"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/rabbitmq"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestTheRabbitMQAdapterConforms(t *testing.T) {
	broker := drainertest.RabbitMQ(t)
	dispatchtest.Conform(t, dispatchtest.Subject{
		Kind:  rabbitmq.Kind(),
		Start: func(t *testing.T) dispatchtest.Counterpart { return startCounterpart(t, broker) },
		Cannot: map[dispatchtest.Situation]string{
			dispatchtest.Busy: "a broker does not look at message ids, so it never waits for an earlier message of the same one",
		},
	})
}

// startCounterpart is the broker behind a proxy that loses what it confirms.
func startCounterpart(t *testing.T, broker *drainertest.Broker) dispatchtest.Counterpart {
	topology, proxy := declare(t, broker), startProxy(t, broker.URL)
	return dispatchtest.Counterpart{
		Settings: "url: " + proxy.url(broker.URL),
		Tool:     topology.tool() + "\nheaders: {memo: '{.payload.memo}'}",
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827, "memo": ""}`),
		Secrets:  []string{"s3cret-of-the-broker"},
		Received: func() (messages []dispatchtest.Message) {
			for _, message := range topology.stored(t) {
				messages = append(messages, dispatchtest.Message{Key: message.MessageId, Body: message.Body})
			}
			return messages
		},
		Enter: func(situation dispatchtest.Situation) { enter(t, situation, topology, proxy) },
	}
}

func enter(t *testing.T, situation dispatchtest.Situation, topology *topology, proxy *proxy) {
	switch situation {
	case dispatchtest.Answering:
		proxy.open(t)
		proxy.lose(nil)
		topology.exchange(t, false)
		topology.bind(t)
	case dispatchtest.Unreachable:
		proxy.close()
	case dispatchtest.Throttling:
		topology.unbind(t)
	case dispatchtest.Rejecting:
		topology.exchange(t, true)
	case dispatchtest.Severing:
		proxy.lose(sever)
	case dispatchtest.Silent:
		proxy.lose(swallow)
	case dispatchtest.Babbling:
		proxy.lose(babble)
	}
}
