package mcp

import (
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
)

// hints are a server's annotations of a tool. Nobody vouches for them, so they
// can only make the adapter more careful.
type hints struct{ annotations *sdk.ToolAnnotations }

// forbidRepeating reports that the server says, by value or by the protocol's
// defaults, that calling again changes things again, against the class that
// the configuration promises. A key makes a call safe whatever the tool is.
func (h hints) forbidRepeating(class dispatch.Class) bool {
	promised := class == dispatch.NaturallyIdempotent || class == dispatch.ReadOnly
	return promised && h.annotations != nil && !h.annotations.IdempotentHint && !h.annotations.ReadOnlyHint
}
