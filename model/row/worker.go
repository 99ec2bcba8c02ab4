package row

import "github.com/agentoutbox/drainer/dispatch"

var workers = [2]string{"worker 1", "worker 2"}

// The two ways in which a worker tells how its attempt ended.
const (
	settles        = "settles"
	settlesUnheard = "settles, and the reply is lost"
)

func owner(w int) Owner { return Owner(w + 1) }

func (n *next) worker(w int) {
	switch n.From.Workers[w].Phase {
	case Idle:
		n.claims(w)
	case Holding:
		n.attempts(w)
	case Waiting:
		n.hears(w)
	case Done:
		n.settles(w)
	}
	for slot, claim := range n.From.Claims {
		if claim.Owner == owner(w) && !claim.Locked {
			n.reclaims(w, slot)
			n.settlesTheRest(w, slot)
		}
	}
	n.livesAndDies(w)
}

func (n *next) claims(w int) {
	slot, free := n.From.freeSlot()
	isTwin := w > 0 && n.From.isBlank(0) // what it can do, the first worker can
	if !n.From.IsDue() || n.From.Workers[w].Buried || !free || isTwin {
		return
	}
	n.Add(workers[w], "claims", func(s *State) { s.claim(w, slot).hold(w, slot) })
	if !n.Heard {
		n.Chance(workers[w], "claims, and the reply is lost", func(s *State) { s.claim(w, slot) })
	}
	if n.Batched && n.From.Newest.Is() == "" {
		n.Chance(workers[w], "claims it with another row", func(s *State) {
			s.claim(w, slot).hold(w, slot)
			s.Claims[slot].Rest = true
		})
	}
}

// IsDue reports whether a claim would take the row.
func (s *State) IsDue() bool { return s.Queue.Is && !s.Queue.Waits }

// claim moves the row from the queue into a claim.
func (s *State) claim(w, slot int) *State {
	past := s.Queue.Past
	past.Tries++
	s.Queue = Queued{}
	s.Claims[slot] = Claim{Owner: owner(w), Began: Fresh, Past: past}
	return s
}

// hold is the claim's reply.
func (s *State) hold(w, slot int) {
	s.Claims[slot].Known = true
	s.Workers[w] = Worker{Phase: Holding, Claim: uint8(slot + 1), Past: s.Claims[slot].Past}
}

func (n *next) settles(w int) {
	claim := n.From.Workers[w].Claim
	if claim != 0 && n.From.Claims[claim-1].Locked {
		return // until the reaper has committed
	}
	n.Add(workers[w], settles, func(s *State) {
		n.turn(s, w)
		s.Workers[w] = Worker{Buried: s.Workers[w].Buried}
	})
	if !n.Heard {
		n.Chance(workers[w], settlesUnheard, func(s *State) { n.turn(s, w) })
	}
}

// turn settles what the worker holds and finishes the claim, unless another of
// its rows is under way.
func (m Model) turn(s *State, w int) {
	held := s.Workers[w]
	end := ended{held.Past, held.Began, held.Outcome.Is()}
	isLast := held.Claim != 0 && !s.Claims[held.Claim-1].Rest
	if isLast && !m.keeps(SettleBeforeFinish) {
		s.finish(int(held.Claim) - 1)
		m.settle(s, 0, end)
		return
	}
	m.settle(s, held.Claim, end)
	if isLast {
		s.finish(int(held.Claim) - 1)
	}
}

// reclaims gives back what a worker claimed and never heard of.
func (n *next) reclaims(w, slot int) {
	claim := n.From.Claims[slot]
	isForgotten := !claim.Known || !n.keeps(KeepsRemembered)
	if !isForgotten || claim.Settled || !n.keeps(ReclaimsForgotten) {
		return
	}
	n.Add(workers[w], "gives back what it never heard of", func(s *State) {
		n.settle(s, uint8(slot+1), ended{past: claim.Past, outcome: dispatch.Released})
		s.finish(slot)
	})
}

func (n *next) settlesTheRest(w, slot int) {
	claim := n.From.Claims[slot]
	if !claim.Rest {
		return
	}
	n.Add(workers[w], "settles the other row", func(s *State) {
		s.Claims[slot].Rest = false
		if claim.Settled {
			s.finish(slot)
		}
	})
}
