package exec

import "github.com/agentoutbox/drainer/dispatch"

// Destinations is the program; where it connects to is its own affair.
func (a *Adapter) Destinations() []dispatch.Destination {
	return []dispatch.Destination{{Network: "program", Address: a.program}}
}
