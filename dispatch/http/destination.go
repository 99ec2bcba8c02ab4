package http

import (
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/onesend"
)

// Destinations is where every request goes.
func (a *Adapter) Destinations() []dispatch.Destination {
	return []dispatch.Destination{onesend.Destination(a.provider.base)}
}
