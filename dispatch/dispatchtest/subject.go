package dispatchtest

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/conformance"
)

// Subject is an adapter, and how to find somebody for it to talk to.
type Subject struct {
	Kind     dispatch.Kind
	Class    dispatch.Class                 // of the tool under test; if empty, key_idempotent or the most that Kind can promise
	Start    func(t *testing.T) Counterpart // a fresh real counterpart; it tears itself down with t.Cleanup
	Cannot   map[Situation]string           // situations that the protocol does not know, each with its reason
	Patience time.Duration                  // how long anything may take that nothing holds up; 10 s if zero
}

// Counterpart is the other side of the protocol, with the blocks that lead to it.
type Counterpart = conformance.Counterpart

// Message is a request that arrived.
type Message = conformance.Message

// before is the subject of one test.
func (s Subject) before(t *testing.T) conformance.Subject {
	t.Helper()
	return conformance.Subject{
		Kind: s.Kind, Class: s.Class, Cannot: s.Cannot, Patience: s.Patience,
		Start: func() Counterpart { return s.Start(t) },
	}
}
