package row

import "github.com/agentoutbox/drainer/dispatch"

const aReaper = "a reaper"

// reaper is any worker that is alive. Its transaction locks a claim first, and
// then reads and settles what is in it.
func (n *next) reaper() {
	for slot, claim := range n.From.Claims {
		reap := func(s *State) { n.reap(s, slot) }
		switch {
		case claim.Locked:
			n.Add(aReaper, "settles as lost what it locked", reap)
			n.Chance(aReaper, "dies, and its lock with it", func(s *State) { s.Claims[slot].Locked = false })
		case claim.Seen:
			n.Add(aReaper, "settles as lost what it saw", reap)
		case !n.From.isOrphan(claim) || !n.keeps(ReapsOrphans):
		case n.keeps(LockBeforeRead):
			n.Add(aReaper, "locks the claim of a buried worker", func(s *State) { s.Claims[slot].Locked = true })
		case !claim.Settled:
			n.Add(aReaper, "sees the claim of a buried worker", func(s *State) { s.Claims[slot].Seen = true })
		}
	}
}

func (s *State) isOrphan(claim Claim) bool {
	return claim.Owner == Dead || (claim.Owner != Nobody && s.Workers[claim.Owner-1].Buried)
}

func (m Model) reap(s *State, slot int) {
	claim, outcome := s.Claims[slot], dispatch.Lost
	if !m.keeps(LostLeavesDoubt) {
		outcome = dispatch.Released
	}
	if !claim.Settled || claim.Seen {
		m.settle(s, uint8(slot+1), ended{claim.Past, claim.Began, outcome})
	}
	s.finish(slot)
}
