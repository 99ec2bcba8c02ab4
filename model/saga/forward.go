package saga

import "github.com/agentoutbox/drainer/dispatch"

var forwardNames = [Steps]string{"step 1", "step 2", "step 3"}

func (n *next) forwardStep(i int) {
	step := &n.From.Steps[i]
	switch step.Place {
	case Absent:
		n.enqueues(i)
	case Committing:
		n.Add(forwardNames[i], "is committed", func(s *State) { s.Steps[i].Place = Queued })
	case Queued:
		n.isClaimed(i)
	case Claiming:
		n.Add(forwardNames[i], "is in a committed claim", func(s *State) { s.Steps[i].claim() })
	case Claimed:
		n.isAttempted(i)
	case Settled:
		n.isTold(i)
	}
	if step.Flying {
		n.arrives(i)
	}
}

// arrives is the end of a request that nobody waits for.
func (n *next) arrives(i int) {
	n.Add(forwardNames[i], "is applied late", func(s *State) { s.Steps[i].Flying, s.Steps[i].Effect = false, true })
	n.Add(forwardNames[i], "never arrives", func(s *State) { s.Steps[i].Flying, s.Steps[i].Witness = false, false })
}

// enqueues has the agent take its steps in order.
func (n *next) enqueues(i int) {
	isNext := i == 0 || n.From.Steps[i-1].Place != Absent
	if isNext && (n.From.Saga == Open || !n.keeps(EnqueueLooks)) {
		n.Chance(forwardNames[i], "is enqueued, and not committed yet", func(s *State) { s.Steps[i].Place = Committing })
	}
}

// isClaimed follows the saga as the claim's snapshot shows it.
func (n *next) isClaimed(i int) {
	step := n.From.Steps[i]
	isClosed := n.From.Saga != Open && n.keeps(ClaimLooks)
	switch {
	case step.Asks && step.Flying: // a lookup waits until all sends are over
	case step.Asks:
		n.Add(forwardNames[i], "is claimed, to be asked about", func(s *State) { s.Steps[i].claim() })
	case !isClosed:
		n.Add(forwardNames[i], "is about to be claimed", func(s *State) { s.Steps[i].Place = Claiming })
	case step.Maybe && n.keeps(ClaimAsks):
		n.Add(forwardNames[i], "is claimed, to be stopped", func(s *State) {
			s.Steps[i].claim()
			s.Steps[i].Closed = true
		})
	default:
		n.Add(forwardNames[i], "is stopped by a claim", func(s *State) { s.Steps[i].cancel() })
	}
}

func (n *next) isAttempted(i int) {
	step := &n.From.Steps[i]
	switch {
	case step.Closed:
		n.Add(forwardNames[i], "is halted", func(s *State) { n.settle(s, i, n.forward(i).Halt(step.history())) })
	case step.Asks:
		n.isAskedAbout(i)
	default:
		n.isSent(i)
	}
}

func (n *next) isAskedAbout(i int) {
	if n.From.Steps[i].Effect {
		n.ends(i, "is found to be applied", dispatch.Completed, func(*Step) {})
	} else {
		n.ends(i, "is found not to be applied", dispatch.Absent, func(*Step) {})
	}
	n.ends(i, "cannot be found out by anybody", dispatch.Ambiguous, func(step *Step) { step.Tries = LastTry })
}

func (n *next) isSent(i int) {
	n.ends(i, "is applied", dispatch.Completed, func(step *Step) { step.Effect = true })
	n.ends(i, "is refused", dispatch.Rejected, func(*Step) {})
	n.ends(i, "is given back", dispatch.Released, func(*Step) {})
	n.ends(i, "is applied, and the reply is lost", dispatch.Ambiguous, func(step *Step) { step.Effect = true })
	n.ends(i, "is lost on its way", dispatch.Ambiguous, func(*Step) {})
	n.ends(i, "loses its worker, which has not sent it", dispatch.Lost, func(*Step) {})
	n.ends(i, "loses its worker, which knows that it is applied", dispatch.Lost, func(step *Step) { step.Effect, step.Witness = true, true })
	n.ends(i, "loses its worker, which has just sent it", dispatch.Lost, func(step *Step) { step.Flying, step.Witness = true, true })
}

// ends settles the attempt of a claimed step, after what it did.
func (n *next) ends(i int, what string, outcome dispatch.Outcome, did func(*Step)) {
	n.Add(forwardNames[i], what, func(s *State) {
		did(&s.Steps[i])
		n.settle(s, i, s.Steps[i].decide(n.forward(i), outcome))
	})
}

// settle is one commit: the step's end, and the saga that begins with it.
func (m Model) settle(s *State, i int, decision dispatch.Decision) {
	s.Steps[i].end(decision)
	s.Steps[i].Closed = false
	if s.Saga == Open && s.Steps[i].Status == failed && m.keeps(FailureBegins) {
		s.Saga = Begun
	}
}

// isTold is what is heard of a settled step afterwards.
func (n *next) isTold(i int) {
	step := &n.From.Steps[i]
	denied := step.Status == failed || step.Status == cancelled || step.Status == unknown
	if step.Witness && step.Effect && denied && (!n.keeps(LateWaits) || !n.From.isActing()) {
		n.Chance(forwardNames[i], "is reported as applied, late", func(s *State) { n.hearLate(s, i) })
	}
	if step.Status == unknown && !n.Unattended {
		n.isResolved(i)
	}
}

// hearLate also tells, if the run has gone back.
func (m Model) hearLate(s *State, i int) {
	s.Steps[i].Status = completed
	if m.keeps(LateIsTold) && (s.Saga == Compensated || s.Saga == Failed || s.Saga == Resolved) {
		s.Saga, s.Steps[i].Incident = Failed, true
	}
}

func (s *State) isActing() bool { return s.Passes[0].Acts || s.Passes[1].Acts }

// isResolved is an operator who found out, or who did not.
func (n *next) isResolved(i int) {
	step := &n.From.Steps[i]
	if step.Effect {
		n.Chance(theOperator, "finds that "+forwardNames[i]+" is applied", func(s *State) { s.Steps[i].Status = completed })
	}
	if step.Effect || step.Flying {
		n.Chance(theOperator, "guesses that "+forwardNames[i]+" failed", func(s *State) { s.Steps[i].Status, s.Steps[i].Guessed = failed, true })
		return
	}
	n.Chance(theOperator, "finds that "+forwardNames[i]+" is not applied", func(s *State) { s.Steps[i].Status = failed })
}
