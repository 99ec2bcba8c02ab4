package smtp_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/smtp"
)

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string][]dispatch.Destination{
		`{server: "mail.example:465", from: a@b.example, security: tls}`: {{Network: "tcp", Address: "mail.example:465", TLS: dispatch.ImplicitTLS}},
		`{server: "mail.example:587", from: a@b.example}`:                {{Network: "tcp", Address: "mail.example:587", TLS: dispatch.UpgradedTLS}},
		`{server: "127.0.0.1:25", from: a@b.example, security: none}`:    {{Network: "tcp", Address: "127.0.0.1:25"}},
	} {
		adapter, err := smtp.New(dispatch.Spec{Settings: dispatchtest.Block(settings)})
		if err != nil {
			t.Fatal(err)
		}
		if got := adapter.Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", settings, got)
		}
	}
}
