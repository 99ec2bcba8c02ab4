package sidecar_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/sidecar"
)

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string][]dispatch.Destination{
		"url: unix:///run/tickets.sock": {{Network: "unix", Address: "/run/tickets.sock"}},
		"url: http://127.0.0.1:8090":    {{Network: "tcp", Address: "127.0.0.1:8090"}},
	} {
		adapter, err := sidecar.New(dispatch.Spec{Settings: dispatchtest.Block(settings)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = adapter.Close() })
		if got := adapter.Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", settings, got)
		}
	}
}
