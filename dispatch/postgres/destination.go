package postgres

import (
	"net"
	"slices"
	"strconv"

	"github.com/agentoutbox/drainer/dispatch"
)

// Destinations are the servers that the URL names.
func (a *Adapter) Destinations() []dispatch.Destination {
	config := a.config.ConnConfig
	use := dispatch.PlainText
	if config.TLSConfig != nil {
		use = dispatch.UpgradedTLS
	}
	all := []dispatch.Destination{destination(config.Host, config.Port, use)}
	for _, next := range config.Fallbacks {
		if another := destination(next.Host, next.Port, use); !slices.Contains(all, another) {
			all = append(all, another)
		}
	}
	return all
}

func destination(host string, port uint16, use dispatch.TLSUse) dispatch.Destination {
	return dispatch.Destination{Network: "tcp", Address: net.JoinHostPort(host, strconv.Itoa(int(port))), TLS: use}
}
