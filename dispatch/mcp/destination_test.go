package mcp_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/mcp"
)

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string][]dispatch.Destination{
		"url: https://mcp.example/rpc":           {{Network: "tcp", Address: "mcp.example:443", TLS: dispatch.ImplicitTLS}},
		"command: [server, --stdio]":             {{Network: "program", Address: "server"}},
		"{command: [./server], directory: /opt}": {{Network: "program", Address: "/opt/server"}},
	} {
		adapter, err := mcp.New(dispatch.Spec{Settings: dispatchtest.Block(settings)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = adapter.Close() })
		if got := adapter.Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", settings, got)
		}
	}
}
