package row

import "github.com/agentoutbox/drainer/model/explore"

// next collects the steps that can be taken from a state.
type next struct {
	Model
	explore.Steps[State]
}

func (m Model) steps(from State) []explore.Step[State] {
	n := &next{m, explore.Steps[State]{From: from, Forget: m.forget}}
	for w := range from.Workers {
		n.worker(w)
	}
	n.reaper()
	n.operator()
	n.provider()
	n.clock()
	return n.Taken
}
