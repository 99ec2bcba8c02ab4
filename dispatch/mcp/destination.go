package mcp

import (
	"net/url"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/onesend"
)

// Destinations is where the endpoint is; a child connects by itself.
func (a *Adapter) Destinations() []dispatch.Destination {
	endpoint, err := url.Parse(a.provider.endpoint)
	if err != nil || a.provider.endpoint == "" {
		return nil
	}
	return []dispatch.Destination{onesend.Destination(endpoint)}
}
