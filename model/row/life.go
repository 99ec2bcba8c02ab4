package row

import "github.com/agentoutbox/drainer/dispatch"

func (n *next) livesAndDies(w int) {
	worker := n.From.Workers[w]
	if n.From.isBlank(w) {
		return
	}
	if !worker.Buried {
		n.Chance(workers[w], "freezes, and is buried", func(s *State) { s.Workers[w].Buried = true })
	}
	if worker.Phase == Idle && worker.Buried {
		n.Add(workers[w], "finds that it is buried, and starts over", func(s *State) { n.startOver(s, w) })
	}
	n.Chance(workers[w], "crashes", func(s *State) {
		if worker.Phase == Waiting {
			s.World.fly()
		}
		n.startOver(s, w)
	})
}

// isBlank holds for a worker without a past.
func (s *State) isBlank(w int) bool {
	return s.Workers[w] == Worker{} && s.Claims[0].Owner != owner(w) && s.Claims[1].Owner != owner(w)
}

// startOver begins a new life, which remembers nothing.
func (m Model) startOver(s *State, w int) {
	s.Workers[w] = Worker{}
	for slot, claim := range s.Claims {
		switch {
		case claim.Owner != owner(w):
		case !claim.Settled && !m.keeps(RecoveryPoint): // nothing of it was committed
			m.end(s, ended{past: claim.Past, outcome: dispatch.Released})
			s.finish(slot)
		case !m.keeps(FreshIdentity):
			s.Claims[slot].Known = false
		default:
			s.Claims[slot].Owner = Dead
		}
	}
}
