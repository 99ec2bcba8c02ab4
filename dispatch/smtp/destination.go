package smtp

import "github.com/agentoutbox/drainer/dispatch"

// Destinations is where the relay is.
func (a *Adapter) Destinations() []dispatch.Destination {
	use := map[string]dispatch.TLSUse{securityTLS: dispatch.ImplicitTLS, securitySTARTTLS: dispatch.UpgradedTLS}[a.relay.security]
	return []dispatch.Destination{{Network: "tcp", Address: a.relay.address, TLS: use}}
}
