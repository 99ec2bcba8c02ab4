package saga

import (
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/explore"
)

// next collects the steps that can be taken from a state.
type next struct {
	Model
	explore.Steps[State]
}

func (m Model) steps(from State) []explore.Step[State] {
	n := &next{m, explore.Steps[State]{From: from, Forget: m.forget}}
	for i := range from.Steps {
		n.forwardStep(i)
		n.undoStep(i)
	}
	for p := range from.Passes {
		n.pass(p)
	}
	if !n.Unattended {
		n.operator()
	}
	return n.Taken
}

// forget drops what makes no difference any more.
func (m Model) forget(s *State) {
	for i := range s.Steps {
		step := &s.Steps[i]
		if step.Effect && m.Class == dispatch.KeyIdempotent {
			step.Flying = false // the provider knows the key
		}
		if step.Place == Settled {
			step.Tries, step.Maybe, step.Asks, step.Closed = 0, false, false, false
			if step.Status == completed || step.Status == compensated || step.Status == notUndone {
				step.Witness, step.Guessed = false, false // it is on record
			}
		}
		if undo := &step.Undo; undo.Place == Settled {
			undo.Tries, undo.Maybe, undo.Asks = 0, false, false
		}
	}
}
