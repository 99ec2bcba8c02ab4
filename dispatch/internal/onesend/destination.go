package onesend

import (
	"cmp"
	"net"
	"net/url"

	"github.com/agentoutbox/drainer/dispatch"
)

// Destination is where a request to an http or https URL goes.
func Destination(to *url.URL) dispatch.Destination {
	use, usual := dispatch.PlainText, "80"
	if to.Scheme == "https" {
		use, usual = dispatch.ImplicitTLS, "443"
	}
	return dispatch.Destination{Network: "tcp", Address: net.JoinHostPort(to.Hostname(), cmp.Or(to.Port(), usual)), TLS: use}
}
