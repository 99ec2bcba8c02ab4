package http_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestAnAdapterSaysWhereItsRequestsGo(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]dispatch.Destination{
		"https://api.example.com/v1":   {Network: "tcp", Address: "api.example.com:443", TLS: dispatch.ImplicitTLS},
		"https://api.example.com:8443": {Network: "tcp", Address: "api.example.com:8443", TLS: dispatch.ImplicitTLS},
		"http://127.0.0.1":             {Network: "tcp", Address: "127.0.0.1:80"},
		"http://[::1]:8080/hooks":      {Network: "tcp", Address: "[::1]:8080"},
	} {
		adapter := newAdapter(t, spec(base, "", "path: /"))
		if got := adapter.Destinations(); !slices.Equal(got, []dispatch.Destination{want}) {
			t.Errorf("%s: %+v", base, got)
		}
	}
}
