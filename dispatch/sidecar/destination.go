package sidecar

import (
	"net/url"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/onesend"
)

// Destinations is where the sidecar listens; where it connects to itself is
// not known here.
func (a *Adapter) Destinations() []dispatch.Destination {
	if a.socket != "" {
		return []dispatch.Destination{{Network: "unix", Address: a.socket}}
	}
	base, err := url.Parse(a.base)
	if err != nil {
		return nil // New refused it
	}
	return []dispatch.Destination{onesend.Destination(base)}
}
