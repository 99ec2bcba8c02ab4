package row

import "github.com/agentoutbox/drainer/dispatch"

// ended is an attempt that is over.
type ended struct {
	past    Past
	began   Age
	outcome dispatch.Outcome
}

// settle is the end of the attempt that somebody remembers under a claim.
func (m Model) settle(s *State, claim uint8, e ended) {
	hasClaim := claim != 0
	isSettled := !hasClaim || s.Claims[claim-1].Settled
	if (m.keeps(ClaimFences) && !hasClaim) || (m.keeps(AttemptEndsOnce) && isSettled) {
		m.hearLate(s, e.outcome)
		return
	}
	m.end(s, e)
	if hasClaim {
		s.Claims[claim-1].Settled, s.Claims[claim-1].Past = true, Past{}
	}
}

// end appends the attempt, and puts the row back where more is to come.
func (m Model) end(s *State, e ended) {
	decision := m.decide(e.past, e.began, e.outcome)
	if !e.past.Lookup && e.outcome != dispatch.NotSent && e.outcome != dispatch.Released {
		e.past.Sent = max(e.past.Sent, e.began)
		s.FirstSent = max(s.FirstSent, e.began)
		if s.World.Accepted > 0 {
			s.Since = max(s.Since, e.began)
		}
	}
	s.append(statusOf(decision.Status))
	s.Settled = !decision.Back()
	if decision.Back() {
		e.past.Tries, e.past.Maybe, e.past.Lookup = int8(decision.Tries), decision.MaybeApplied, decision.Lookup
		if decision.Lookup {
			e.past.Tries = min(e.past.Tries, LookupTries)
		}
		s.Queue = Queued{Is: true, Waits: decision.Delay >= untilDrained, Past: e.past}
		return
	}
	s.Incident = s.Newest == unknown && m.keeps(UnknownIsTold)
}

// hearLate records an effect of which a refused settlement knows, unless the
// row is claimed again.
func (m Model) hearLate(s *State, outcome dispatch.Outcome) {
	isOpen := s.Queue.Is || s.Settled && s.Newest != completed
	if m.keeps(LateEvidence) && outcome == dispatch.Completed && isOpen {
		s.Queue = Queued{}
		s.append(completed)
		s.Settled, s.Incident = true, false
	}
}

func (s *State) append(status Status) {
	s.Newest = status
	s.Operator.Overtaken = s.Operator.Plan != None
}

// finish deletes a claim whose rows have all ended.
func (s *State) finish(slot int) {
	s.Claims[slot] = Claim{}
	for w := range s.Workers {
		if int(s.Workers[w].Claim) == slot+1 {
			s.Workers[w].Claim = 0
		}
	}
}

func (s *State) freeSlot() (int, bool) {
	for slot, claim := range s.Claims {
		if claim.Owner == Nobody {
			return slot, true
		}
	}
	return 0, false
}
