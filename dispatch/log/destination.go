package log

import "github.com/agentoutbox/drainer/dispatch"

// Destinations are none: nothing is sent anywhere.
func (a *Adapter) Destinations() []dispatch.Destination { return nil }
