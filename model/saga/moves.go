package saga

import (
	"slices"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
)

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
		n.isNoted(i)
	}
	if step.Flying {
		n.arrives(i)
	}
}

// arrives adds the ends of an abandoned request.
func (n *next) arrives(i int) {
	n.Add(forwardNames[i], "is applied late", func(s *State) { s.Steps[i].Flying, s.Steps[i].Effect = false, true })
	n.Add(forwardNames[i], "never arrives", func(s *State) { s.Steps[i].Flying, s.Steps[i].Witness = false, false })
}

// enqueues lets the agent enqueue its steps in order.
func (n *next) enqueues(i int) {
	isNext := i == 0 || n.From.Steps[i-1].Place != Absent
	if isNext && (n.From.Saga == Open || !n.keeps(EnqueueLooks)) {
		n.Chance(forwardNames[i], "is enqueued, and not committed yet", func(s *State) { s.Steps[i].Place = Committing })
	}
}

// isClaimed depends on the saga as the claim's snapshot shows it.
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
	case !n.forward(i).MayStillSend(step.history()):
		n.ends(i, "must not be sent", dispatch.NotSent, func(*Step) {})
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
	n.ends(i, "cannot be found out", dispatch.Ambiguous, func(step *Step) { step.Tries = LastTry })
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

// ends settles the attempt of a claimed step, after the effect that did describes.
func (n *next) ends(i int, what string, outcome dispatch.Outcome, did func(*Step)) {
	n.Add(forwardNames[i], what, func(s *State) {
		did(&s.Steps[i])
		n.settle(s, i, s.Steps[i].decide(n.forward(i), outcome))
	})
}

// settle is one commit: it ends the step, and begins the saga if the step failed.
func (m Model) settle(s *State, i int, decision dispatch.Decision) {
	s.Steps[i].end(decision)
	s.Steps[i].Closed = false
	if s.Steps[i].Status == completed {
		s.completes(i)
	}
	if s.Saga == Open && s.Steps[i].Status == failed && m.keeps(FailureBegins) {
		s.Saga = Begun
	}
}

// isNoted adds the changes that are still possible for a settled step.
func (n *next) isNoted(i int) {
	step := &n.From.Steps[i]
	denied := step.Status == failed || step.Status == cancelled || step.Status == unknown
	if step.Witness && step.Effect && denied {
		n.Chance(forwardNames[i], "is reported as applied, late", func(s *State) { n.noteLate(s, i) })
	}
	if step.Status == unknown && !n.Unattended {
		n.isResolved(i)
	}
}

// noteLate also fails the saga if the rollback has ended.
func (m Model) noteLate(s *State, i int) {
	s.Steps[i].Status = completed
	s.completes(i)
	if m.keeps(LateMarks) {
		m.mark(s)
	}
	if m.keeps(LateIsTold) {
		s.tellLate(i)
	}
}

func (s *State) tellLate(i int) {
	if s.Saga == Compensated || s.Saga == Failed || s.Saga == Resolved {
		s.Saga, s.Steps[i].Incident = Failed, true
	}
}

// isResolved is an operator who has found out the truth, or who guesses.
func (n *next) isResolved(i int) {
	step := &n.From.Steps[i]
	if step.Effect {
		n.Chance(theOperator, "finds that "+forwardNames[i]+" is applied", func(s *State) {
			s.Steps[i].Status = completed
			s.completes(i)
			n.mark(s)
		})
	}
	if step.Effect || step.Flying {
		n.Chance(theOperator, "guesses that "+forwardNames[i]+" failed", func(s *State) { s.Steps[i].Status, s.Steps[i].Guessed = failed, true })
		return
	}
	n.Chance(theOperator, "finds that "+forwardNames[i]+" is not applied", func(s *State) { s.Steps[i].Status = failed })
}

var passNames = [2]string{"a pass", "another pass"}

// pass reads and acts in separate transactions. Others may commit between them.
func (n *next) pass(p int) {
	if n.From.Passes[p].Acts {
		n.acts(p)
		return
	}
	isTwin := p > 0 && (n.keeps(OnePass) || !n.From.Passes[0].Acts) // the first pass can do the same
	if n.From.Saga != Begun || isTwin || n.haltWaits() {
		return
	}
	halted := n.From
	halted.halt()
	halted.endHalt((*Row).cancel)
	plan := n.plan(&halted)
	switch {
	case plan.Action != compensations.Wait:
		n.Add(passNames[p], "reads: "+plans[plan.Action], func(s *State) {
			*s = halted
			s.Passes[p] = Pass{Acts: true, Plan: plan.Action, Step: int8(plan.Step.IntentID)}
		})
	case halted != n.From:
		n.Add(passNames[p], "stops what waits", func(s *State) { *s = halted })
	}
}

// mark is part of every commit that gives the saga new information.
func (m Model) mark(s *State) {
	if m.keeps(NewsDropAhead) {
		s.Ahead = Ahead{}
	}
	for p := range s.Passes {
		s.Passes[p].Stale = s.Passes[p].Acts && m.keeps(OnePass)
	}
}

var plans = [...]string{
	compensations.Undo: "the newest effect is to be undone", compensations.Mark: "an undo is to be noted",
	compensations.Fail: "a step cannot be undone", compensations.Finish: "nothing is left to undo",
}

// haltWaits reports whether an open transaction holds a row that a pass must not miss.
func (n *next) haltWaits() bool {
	for _, step := range n.From.Steps {
		if step.Place == Halting || (step.Place == Claiming && n.keeps(HaltWaits)) {
			return true
		}
	}
	return false
}

// halt takes rows that were certainly not applied out of the queue.
func (s *State) halt() {
	for i := range s.Steps {
		if step := &s.Steps[i]; step.Place == Queued && !step.Maybe && !step.Asks {
			step.Place = Halting
		}
	}
}

// endHalt ends the transaction of a halt, by a commit or a rollback.
func (s *State) endHalt(end func(*Row)) {
	for i := range s.Steps {
		if row := &s.Steps[i].Row; row.Place == Halting {
			end(row)
		}
	}
}

// plan finds the next step, and asks the program for the action on it.
func (m Model) plan(s *State) compensations.Decision {
	last := -1
	for i, step := range s.Steps {
		if step.Place == Absent || step.Place == Committing {
			continue
		}
		switch status := m.statusOf(step); status {
		case dispatch.StatusPending, statusInProgress, dispatch.StatusUnknown:
			return compensations.Decision{Action: compensations.Wait}
		case dispatch.StatusCompleted:
			if last < 0 || m.keeps(NewestFirst) == (step.Done > s.Steps[last].Done) {
				last = i
			}
		}
	}
	if last < 0 {
		return compensations.Decision{Action: compensations.Finish}
	}
	return compensations.Decide(m.seen(last, s.Steps[last]), m.policies)
}

// seen returns a step as a pass reads it.
func (m Model) seen(i int, step Step) compensations.Step {
	seen := compensations.Step{IntentID: int64(i)}
	seen.Tuple.ToolName = shop + "/" + Operation(i)
	if step.Undo.Place != Absent {
		seen.Undo, seen.UndoEnded = step.Undo.Status.Is(), step.Undo.Place == Settled
	}
	if seen.Undo == dispatch.StatusCompleted && !m.keeps(NotesLater) {
		seen.Undo, seen.UndoEnded = dispatch.StatusPending, false
	}
	return seen
}

func (m Model) statusOf(step Step) dispatch.Status {
	isOpen := step.isOpen() || step.Status == unknown
	switch {
	case step.Place == Halting,
		step.Place == Claiming, // if no pass has waited for it
		isOpen && !m.keeps(OpenComesFirst):
		return statusCancelled
	case step.Place == Claimed && step.Status == pending:
		return statusInProgress
	}
	return step.Status.Is()
}

func (n *next) acts(p int) {
	pass := n.From.Passes[p]
	if pass.Stale {
		n.Add(passNames[p], "finds news", func(s *State) { s.Passes[p] = Pass{} })
	} else {
		n.Add(passNames[p], "acts, and commits", func(s *State) {
			s.Passes[p] = Pass{}
			n.mark(s)
			n.act(s, pass)
		})
	}
	n.Chance(passNames[p], "dies", func(s *State) { s.Passes[p] = Pass{} })
}

func (m Model) act(s *State, pass Pass) {
	step := &s.Steps[pass.Step]
	switch pass.Plan {
	case compensations.Undo:
		m.enqueueUndo(step)
		s.Ahead = m.lookAhead(*s, pass.Step)
	case compensations.Mark:
		step.Status = compensated
	case compensations.Fail:
		step.Status, step.Incident, s.Saga = notUndone, m.keeps(FailureIsTold), Failed
	case compensations.Finish:
		s.Saga = Compensated
	}
}

// lookAhead decides the actions after the undo of a step, up to the first one that needs a read of its own.
func (m Model) lookAhead(s State, undoing int8) Ahead {
	ahead, at := Ahead{Undoing: undoing + 1}, undoing
	for n := range Steps {
		s.Steps[at].Status = compensated
		switch decision := m.plan(&s); decision.Action {
		case compensations.Undo:
			at = int8(decision.Step.IntentID)
			ahead.Next[n] = at + 1
		case compensations.Finish:
			ahead.Ends = true
			return ahead
		default:
			return ahead
		}
	}
	return ahead
}

// goOn continues the saga in the commit of an undo's end. It enqueues the next undo, or ends the saga, if that was
// decided ahead and no pass is running. Otherwise it only marks the saga for a pass.
func (m Model) goOn(s *State, i int) {
	ahead := s.Ahead
	isTaken := slices.ContainsFunc(s.Passes[:], func(p Pass) bool { return p.Acts })
	m.mark(s)
	switch next := ahead.Next[0]; {
	case isTaken || s.Saga != Begun || s.Steps[i].Status != compensated || ahead.Undoing != int8(i)+1:
	case next > 0 && s.Steps[next-1].Undo.Place == Absent:
		m.enqueueUndo(&s.Steps[next-1])
		s.Ahead = Ahead{Undoing: next, Next: [Steps - 1]int8{ahead.Next[1]}, Ends: ahead.Ends}
	case next == 0 && ahead.Ends:
		s.Saga = Compensated
	}
}

// enqueueUndo does nothing if the step has an undo, because of the unique index.
func (m Model) enqueueUndo(step *Step) {
	if step.Undo.Place == Absent || !m.keeps(OneUndo) {
		step.Undo = Row{Place: Queued, Maybe: step.Old && m.keeps(LostUndosLeaveDoubt)}
	}
}

var undoNames = [Steps]string{"undo 1", "undo 2", "undo 3"}

// undoStep adds the steps of an undo, which is an intent like any other.
func (n *next) undoStep(i int) {
	undo := n.From.Steps[i].Undo
	switch {
	case undo.Place == Queued:
		n.Add(undoNames[i], "is claimed", func(s *State) { s.Steps[i].Undo.claim() })
	case undo.Place == Claimed && !undo.Asks && !n.undo().MayStillSend(undo.history()):
		n.undoEnds(i, "must not be sent", dispatch.NotSent, 0)
	case undo.Place == Claimed && !n.answerable(undo).Asks:
		n.undoIsSent(i)
	case undo.Place == Claimed && n.undo().Lookup == nil:
		n.undoEnds(i, "cannot be asked about", dispatch.NotSent, 0)
	case undo.Place == Claimed:
		n.undoIsAskedAbout(i)
	}
	if undo.Place != Claimed && undo.Status == unknown && !n.Unattended {
		n.undoIsResolved(i)
	}
	if undo.Place != Claimed && n.From.Steps[i].Knows {
		n.Chance(undoNames[i], "is reported as applied, late", func(s *State) {
			s.Steps[i].Undo.settle(completed)
			n.mark(s)
			s.Steps[i].Incident = s.Steps[i].Incident || s.Steps[i].Status == compensated && n.keeps(LateUndoIsTold)
			s.tellLate(i)
		})
	}
}

// answerable replaces a lookup that the tool does not have by a repetition of the undo, if that is safe.
func (m Model) answerable(undo Row) Row {
	undo.Asks = undo.Asks && (m.undo().Lookup != nil || m.Class == dispatch.NonIdempotent)
	return undo
}

func (n *next) undoIsSent(i int) {
	n.undoEnds(i, "is applied", dispatch.Completed, 1)
	n.undoEnds(i, "is refused", dispatch.Rejected, 0)
	n.undoEnds(i, "is applied, and the reply is lost", dispatch.Ambiguous, 1)
	n.undoEnds(i, "loses its worker, which has not sent it", dispatch.Lost, 0)
	n.undoEnds(i, "loses its worker, which had sent it", dispatch.Lost, 1)
}

func (n *next) undoIsAskedAbout(i int) {
	if n.From.Steps[i].Undone > 0 {
		n.undoEnds(i, "is found to be applied", dispatch.Completed, 0)
	} else {
		n.undoEnds(i, "is found not to be applied", dispatch.Absent, 0)
	}
	n.undoEnds(i, "cannot be found out", dispatch.Ambiguous, 0)
}

// undoEnds is one commit: the end of the undo, and its consequences for the step and the saga.
func (n *next) undoEnds(i int, what string, outcome dispatch.Outcome, applied int8) {
	n.Add(undoNames[i], what, func(s *State) {
		n.endUndo(s, i, outcome, applied)
		if s.Steps[i].Undo.Place == Settled {
			n.goOn(s, i)
		}
	})
}

func (m Model) endUndo(s *State, i int, outcome dispatch.Outcome, applied int8) {
	step := &s.Steps[i]
	if applied > 0 {
		m.applyUndo(step)
		step.Knows = step.Knows || outcome == dispatch.Lost
	}
	attempted := m.answerable(step.Undo)
	if outcome == dispatch.Ambiguous && attempted.Asks {
		attempted.Tries = LastTry
	}
	step.Undo.end(attempted.decide(m.undo(), outcome))
	if step.Undo.Place == Settled && m.keeps(UndoIsNoted) {
		m.noteUndo(s, i)
	}
}

// applyUndo is the effect at the provider, which recognises a key.
func (m Model) applyUndo(step *Step) {
	if m.Class == dispatch.KeyIdempotent && m.keeps(KeyedUndo) {
		step.Undone = 1
		return
	}
	step.Undone = min(step.Undone+1, 2)
}

func (m Model) noteUndo(s *State, i int) {
	if s.Steps[i].Undo.Status == completed {
		s.Steps[i].Status = compensated
		return
	}
	s.Steps[i].Status = notUndone
	s.Steps[i].Incident = m.keeps(FailureIsTold)
	if s.Saga == Begun {
		s.Saga = Failed
	}
}

func (n *next) undoIsResolved(i int) {
	status, what := failed, "finds that "+undoNames[i]+" is not applied"
	if n.From.Steps[i].Undone > 0 {
		status, what = completed, "finds that "+undoNames[i]+" is applied"
	}
	n.Chance(theOperator, what, func(s *State) {
		s.Steps[i].Undo.settle(status)
		n.mark(s)
	})
}

const theDatabase = "the database"

// database adds a failover to a server with an earlier state. Effects at the provider remain.
func (n *next) database() {
	if !n.LosesCommits || n.From.LostCommits || !n.From.hasSteps() {
		return
	}
	n.Chance(theDatabase, "loses all commits since the steps were enqueued", func(s *State) {
		s.restore(Open, func(step *Step) {
			step.Row, step.Guessed, step.Done = Row{Place: Queued, Maybe: n.keeps(LostCommitsLeaveDoubt)}, false, 0
		})
	})
	isUndoing := slices.ContainsFunc(n.From.Steps[:], func(step Step) bool { return step.Undo.Place != Absent })
	if isUndoing && n.From.all(func(step *Step) bool { return !step.isOpen() || step.Place == Committing }) {
		n.Chance(theDatabase, "loses all commits since the first undo was enqueued", func(s *State) {
			s.restore(Begun, func(step *Step) {
				if step.Status == compensated || step.Status == notUndone {
					step.Status = completed
				}
			})
		})
	}
}

func (s *State) hasSteps() bool {
	return !s.all(func(step *Step) bool { return step.Place <= Committing })
}

// restore keeps the effects of each step at the provider, and restores its record with was.
func (s *State) restore(saga Saga, was func(*Step)) {
	s.Saga, s.Passes, s.Ahead, s.LostCommits = saga, [2]Pass{}, Ahead{}, true
	for i := range s.Steps {
		step := &s.Steps[i]
		step.Closed, step.Witness, step.Undo, step.Knows, step.Incident = false, false, Row{}, false, false
		if step.Old = step.Place > Committing; step.Old {
			was(step)
		} else {
			step.Row = Row{}
		}
	}
}

const theOperator = "the operator"

// operator is a person. Each change is one commit here.
func (n *next) operator() {
	switch n.From.Saga {
	case Open:
		if n.From.hasSteps() {
			n.Chance(theOperator, "takes the run back", func(s *State) { s.Saga = Begun })
			n.Chance(theOperator, "cancels the run", func(s *State) {
				s.Saga = Cancelled
				s.halt()
				s.endHalt((*Row).cancel)
			})
		}
	case Cancelled:
		n.Chance(theOperator, "takes the cancelled run back", func(s *State) { s.Saga = Begun })
	case Begun:
		n.resolvesSaga()
	case Failed:
		n.Chance(theOperator, "retries the saga", func(s *State) { s.retry(false) })
		n.Chance(theOperator, "undoes by hand what was not, and retries the saga", func(s *State) { s.retry(true) })
		n.resolvesSaga()
	}
}

// retry counts stuck steps as undone by hand, or else as completed, so that they are undone again.
func (s *State) retry(byHand bool) {
	s.Saga, s.Ahead = Begun, Ahead{}
	for i := range s.Steps {
		step := &s.Steps[i]
		step.Incident = false
		isStuck := step.Status == notUndone
		switch {
		case isStuck && byHand:
			step.Status, step.Undone = compensated, 1
		case isStuck:
			step.Status = completed
		}
		if undo := &step.Undo; undo.Place == Settled && undo.Status != completed && step.Status != compensated {
			isDoubtful := undo.Status == unknown
			*undo = Row{Place: Queued, Maybe: isDoubtful, Asks: isDoubtful}
		}
	}
}

// resolvesSaga is not possible while an undo is claimed, or queued in doubt. Other queued undos are cancelled.
func (n *next) resolvesSaga() {
	resolved := n.From
	resolved.Saga = Resolved
	n.mark(&resolved)
	for i := range resolved.Steps {
		step := &resolved.Steps[i]
		step.Incident = false
		if step.Undo.Place == Queued && !step.Undo.Maybe {
			step.Undo.cancel()
		}
		if step.Undo.isOpen() && n.keeps(ResolveWaits) {
			return
		}
	}
	n.Chance(theOperator, "resolves the saga", func(s *State) { *s = resolved })
}
