package rabbitmq_test

import (
	"encoding/json"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
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
			dispatchtest.Busy:      "a broker does not look at message ids, so it never waits for an earlier message of the same one",
			dispatchtest.Rejecting: "a broker refuses a message for good only for its size, and the kit sends small ones",
		},
	})
}

// startCounterpart returns the broker behind a proxy that can lose its confirms.
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
		proxy.Open()
		proxy.lose(nil)
		topology.exchange(t, false)
		topology.bind(t)
	case dispatchtest.Unreachable:
		proxy.Shut()
	case dispatchtest.Throttling:
		topology.unbind(t)
	case dispatchtest.Severing:
		proxy.lose(sever)
	case dispatchtest.Silent:
		proxy.lose(swallow)
	case dispatchtest.Babbling:
		proxy.lose(babble)
	}
}

func TestBadConfigurationIsRefusedByFieldName(t *testing.T) {
	t.Parallel()
	const good, tool = "url: amqps://u:p@broker.example.com/vhost", "{exchange: orders}"
	dispatchtest.Refuses(t, rabbitmq.Kind(), dispatchtest.Mistakes{
		"no url":             {"url: ''", tool, "url is missing"},
		"no URL":             {"url: 'amqp://u:canary%zz@h'", tool, "url is not a URL"},
		"a trailing newline": {`url: "amqp://u:canary@h\n"`, tool, "trailing newline"},
		"another scheme":     {"url: https://u:canary@h", tool, "neither amqp nor amqps"},
		"no host":            {"url: 'amqp:///canary'", tool, "url has no host"},
		"a query":            {good + "?heartbeat=canary", tool, "query"},
		"a huge port":        {"url: amqp://u:canary@h:99999999999", tool, "AMQP URI"},
		"a port":             {"url: amqp://u:p@h:canary", tool, "url is not a URL"},
		"heartbeat":          {good + "\nheartbeat: canary", tool, "heartbeat: want a duration"},
		"a long heartbeat":   {good + "\nheartbeat: 5m", tool, "from 1s to 60s"},
		"an odd heartbeat":   {good + "\nheartbeat: 1500ms", tool, "whole number of seconds"},
		"nowhere":            {good, "{map: .payload}", "exchange and routing_key are both missing"},
		"a long exchange":    {good, "{exchange: " + long(256) + "}", "exchange is longer"},
		"a long key":         {good, "{routing_key: " + long(256) + "}", "routing_key is longer"},
		"a delay":            {good, "{exchange: a, headers: {X-Delay: '{.payload.canary}'}}", "headers: X-Delay"},
		"another route":      {good, "{exchange: a, headers: {CC: '{.payload.canary}'}}", "headers: CC"},
		"a hidden route":     {good, "{exchange: a, headers: {bcc: '{.payload.canary}'}}", "headers: bcc"},
		"a bad header":       {good, "{exchange: a, headers: {x: '{.canary'}}", "headers.x: placeholder"},
		"map":                {good, "{exchange: a, map: '.canary |'}", "map: jq does not parse"},
		"unknown field":      {good, "{exchange: a, mandatory: false}", "not what *rabbitmq.Tool takes"},
	})
}

func TestGoodConfigurationConnectsToNothing(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"amqps://u:p%40ss@broker.example.com:5671/v%2Fhost", "amqp://localhost", "amqp://u:p@[::1]:5672/"} {
		newAdapter(t, spec("'"+url+"'\nheartbeat: 30s", "{routing_key: queue}"))
	}
}

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	dispatchtest.ConnectsTo(t, rabbitmq.Kind(), map[string][]dispatch.Destination{
		"url: amqp://u:canary@mq.example":        {{Network: "tcp", Address: "mq.example:5672"}},
		"url: amqps://u:canary@mq.example/vhost": {{Network: "tcp", Address: "mq.example:5671", TLS: dispatch.ImplicitTLS}},
	})
}
