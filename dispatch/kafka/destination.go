package kafka

import "github.com/agentoutbox/drainer/dispatch"

// Destinations are the brokers of the configuration; which others there are is
// learned from them.
func (a *Adapter) Destinations() []dispatch.Destination { return a.brokers }

func destinations(settings Settings) []dispatch.Destination {
	use := dispatch.PlainText
	if settings.TLS {
		use = dispatch.ImplicitTLS
	}
	all := make([]dispatch.Destination, len(settings.Brokers))
	for i, broker := range settings.Brokers {
		all[i] = dispatch.Destination{Network: "tcp", Address: broker, TLS: use}
	}
	return all
}
