package dispatchtest

import "github.com/agentoutbox/drainer/dispatch/conformance"

// Situation is how a counterpart behaves towards requests.
type Situation = conformance.Situation

// The situations; package conformance says what each means.
const (
	Answering   = conformance.Answering
	Unreachable = conformance.Unreachable
	Throttling  = conformance.Throttling
	Rejecting   = conformance.Rejecting
	Severing    = conformance.Severing
	Busy        = conformance.Busy
	Silent      = conformance.Silent
	Babbling    = conformance.Babbling
	Forbidden   = conformance.Forbidden
)
