package kafka_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/kafka"
)

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string][]dispatch.Destination{
		"brokers: [\"a.example:9092\", \"b.example:9092\"]": {{Network: "tcp", Address: "a.example:9092"}, {Network: "tcp", Address: "b.example:9092"}},
		"{brokers: [\"a.example:9093\"], tls: true}":        {{Network: "tcp", Address: "a.example:9093", TLS: dispatch.ImplicitTLS}},
	} {
		adapter, err := kafka.New(dispatch.Spec{Settings: dispatchtest.Block(settings)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = adapter.Close() })
		if got := adapter.Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", settings, got)
		}
	}
}
