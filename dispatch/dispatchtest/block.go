package dispatchtest

import (
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/conformance"
)

// Block is a block of configuration, strict as in the configuration file.
func Block(yaml string) dispatch.Block { return conformance.Block(yaml) }
