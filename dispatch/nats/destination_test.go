package nats_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/nats"
)

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string][]dispatch.Destination{
		"urls: [\"nats://a.example\", \"tls://b.example:5222\"]": {{Network: "tcp", Address: "a.example:4222"}, {Network: "tcp", Address: "b.example:5222", TLS: dispatch.UpgradedTLS}},
		"{urls: [\"nats://[::1]:4222\"], tls: true}":             {{Network: "tcp", Address: "[::1]:4222", TLS: dispatch.UpgradedTLS}},
	} {
		adapter, err := nats.New(dispatch.Spec{Settings: dispatchtest.Block(settings)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = adapter.Close() })
		if got := adapter.Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", settings, got)
		}
	}
}
