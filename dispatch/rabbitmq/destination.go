package rabbitmq

import (
	"net"
	"strconv"

	"github.com/agentoutbox/drainer/dispatch"
)

// Destinations is where the broker is.
func (a *Adapter) Destinations() []dispatch.Destination {
	broker, err := amqpURI(a.url)
	if err != nil {
		return nil // New refused it
	}
	use := dispatch.PlainText
	if broker.Scheme == "amqps" {
		use = dispatch.ImplicitTLS
	}
	return []dispatch.Destination{{Network: "tcp", Address: net.JoinHostPort(broker.Host, strconv.Itoa(broker.Port)), TLS: use}}
}
