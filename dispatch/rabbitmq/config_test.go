package rabbitmq_test

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/rabbitmq"
)

func TestBadConfigurationIsRefusedByFieldName(t *testing.T) {
	t.Parallel()
	const good, tool = "amqps://u:p@broker.example.com/vhost", "{exchange: orders}"
	for name, test := range map[string]struct{ url, tool, want string }{
		"no url":             {"''", tool, "url is missing"},
		"no URL":             {"'amqp://u:canary%zz@h'", tool, "url is not a URL"},
		"a trailing newline": {`"amqp://u:canary@h\n"`, tool, "trailing newline"},
		"another scheme":     {"https://u:canary@h", tool, "neither amqp nor amqps"},
		"no host":            {"'amqp:///canary'", tool, "url has no host"},
		"a query":            {good + "?heartbeat=canary", tool, "query"},
		"a huge port":        {"amqp://u:canary@h:99999999999", tool, "AMQP URI"},
		"a port":             {"amqp://u:p@h:canary", tool, "url is not a URL"},
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := rabbitmq.New(spec(test.url, test.tool))
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "canary") {
				t.Errorf("%v, want %q and no value", err, test.want)
			}
		})
	}
}

func TestGoodConfigurationConnectsToNothing(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"amqps://u:p%40ss@broker.example.com:5671/v%2Fhost", "amqp://localhost", "amqp://u:p@[::1]:5672/"} {
		newAdapter(t, spec("'"+url+"'\nheartbeat: 30s", "{routing_key: queue}"))
	}
}
