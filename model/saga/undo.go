package saga

import "github.com/agentoutbox/drainer/dispatch"

var undoNames = [Steps]string{"undo 1", "undo 2", "undo 3"}

// undoStep is the undo's own journey: it is an intent like any other.
func (n *next) undoStep(i int) {
	undo := n.From.Steps[i].Undo
	switch {
	case undo.Place == Queued:
		n.Add(undoNames[i], "is claimed", func(s *State) { s.Steps[i].Undo.claim() })
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
}

// answerable is what a lane makes of a question that no tool answers: the act
// itself, where repeating it is as good as asking.
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
	n.undoEnds(i, "cannot be found out by anybody", dispatch.Ambiguous, 0)
}

// undoEnds is one commit: the undo's end, and what it means for the step and
// the saga. Who fails the saga waits for a pass that has it.
func (n *next) undoEnds(i int, what string, outcome dispatch.Outcome, applied int8) {
	ended := n.From
	n.endUndo(&ended, i, outcome, applied)
	if ended.Saga != n.From.Saga && n.keeps(OnePass) && n.From.isActing() {
		return
	}
	n.Add(undoNames[i], what, func(s *State) { *s = ended })
}

func (m Model) endUndo(s *State, i int, outcome dispatch.Outcome, applied int8) {
	step := &s.Steps[i]
	if applied > 0 {
		m.applyUndo(step)
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

// applyUndo is the provider's part: it knows a key again.
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
	n.Chance(theOperator, what, func(s *State) { s.Steps[i].Undo.settle(status) })
}
