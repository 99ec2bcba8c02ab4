package dispatch

import "time"

// Reversal says how the effect of a tool is undone. The zero value says that
// nobody declared how.
type Reversal struct {
	Tool    string        // the tool that undoes it, by its full name
	Payload string        // a jq expression that makes the undo's payload; empty sends the forward payload
	Window  time.Duration // how long after the effect that works; 0 where nobody said
	None    bool          // there is nothing to undo
}

// ReversalInput names what the expression of a [Reversal] sees of the effect
// that is to be undone.
var ReversalInput = []string{
	"payload", "response", "provider_ref", "key", "agent_run_id", "step_id", "tool_name", "business_scope",
}
