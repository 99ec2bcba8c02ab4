package http

import (
	"cmp"
	"net"

	"github.com/agentoutbox/drainer/dispatch"
)

// Destinations is where every request goes.
func (a *Adapter) Destinations() []dispatch.Destination {
	base := a.provider.base
	destination := dispatch.Destination{Network: "tcp"}
	usual := "80"
	if base.Scheme == "https" {
		destination.TLS, usual = dispatch.ImplicitTLS, "443"
	}
	destination.Address = net.JoinHostPort(base.Hostname(), cmp.Or(base.Port(), usual))
	return []dispatch.Destination{destination}
}
