package row

import "github.com/agentoutbox/drainer/model/explore"

// next collects the steps that can be taken from a state.
type next struct {
	Model
	from  State
	steps []explore.Step[State]
}

func (m Model) steps(from State) []explore.Step[State] {
	n := &next{Model: m, from: from}
	for w := range from.Workers {
		n.worker(w)
	}
	n.reaper()
	n.operator()
	n.provider()
	n.clock()
	return n.steps
}

func (n *next) add(who, what string, change func(*State)) {
	to := n.from
	change(&to)
	n.forget(&to)
	n.steps = append(n.steps, explore.Step[State]{Who: who, What: what, To: to})
}

// chance adds what nobody can count on.
func (n *next) chance(who, what string, change func(*State)) {
	n.add(who, what, change)
	n.steps[len(n.steps)-1].Chance = true
}
