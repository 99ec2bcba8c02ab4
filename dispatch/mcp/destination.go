package mcp

import (
	"net/url"
	"path/filepath"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/onesend"
)

// Destinations is where the endpoint is, or the program; where that connects to
// is its own affair.
func (a *Adapter) Destinations() []dispatch.Destination {
	if a.program != nil {
		return []dispatch.Destination{{Network: "program", Address: a.program.location()}}
	}
	endpoint, err := url.Parse(a.provider.endpoint)
	if err != nil {
		return nil
	}
	return []dispatch.Destination{onesend.Destination(endpoint)}
}

// location is the program's name or path; a relative one counts from where it
// is started.
func (p *program) location() string {
	name := p.command[0]
	if !strings.Contains(name, "/") || filepath.IsAbs(name) || p.directory == "" {
		return name
	}
	return filepath.Join(p.directory, name)
}
