package rabbitmq_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/rabbitmq"
)

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string][]dispatch.Destination{
		"url: amqp://u:canary@mq.example":        {{Network: "tcp", Address: "mq.example:5672"}},
		"url: amqps://u:canary@mq.example/vhost": {{Network: "tcp", Address: "mq.example:5671", TLS: dispatch.ImplicitTLS}},
	} {
		adapter, err := rabbitmq.New(dispatch.Spec{Settings: dispatchtest.Block(settings)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = adapter.Close() })
		if got := adapter.Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", settings, got)
		}
	}
}
