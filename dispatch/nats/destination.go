package nats

import (
	"cmp"
	"net"
	"net/url"

	"github.com/agentoutbox/drainer/dispatch"
)

const usualPort = "4222"

// Destinations are the servers. TLS begins after a server's first message.
func (a *Adapter) Destinations() (all []dispatch.Destination) {
	settings := a.connection.settings
	for _, text := range settings.URLs {
		server, err := url.Parse(text)
		if err != nil {
			continue // New refused it
		}
		use := dispatch.PlainText
		if settings.TLS || server.Scheme == "tls" {
			use = dispatch.UpgradedTLS
		}
		address := net.JoinHostPort(server.Hostname(), cmp.Or(server.Port(), usualPort))
		all = append(all, dispatch.Destination{Network: "tcp", Address: address, TLS: use})
	}
	return all
}
