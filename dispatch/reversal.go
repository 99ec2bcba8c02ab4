package dispatch

import "time"

// Reversal says how the effect of a tool is undone. In the zero value nothing
// is declared.
type Reversal struct {
	Tool    string        // the tool that undoes it, by its full name
	Payload string        // a jq expression that makes the undo's payload; empty sends the forward payload
	Window  time.Duration // how long after the effect that works; 0 if not declared
	None    bool          // there is nothing to undo
}

// ReversalInput names what the expression of a [Reversal] sees of the effect
// that is to be undone.
var ReversalInput = []string{
	"payload", "response", "provider_ref", "key", "agent_run_id", "step_id", "tool_name", "business_scope",
}
