package saga

const theOperator = "the operator"

// operator is a person, whose every change is one commit here.
func (n *next) operator() {
	switch n.From.Saga {
	case Open:
		if n.From.Steps[0].Place > Committing {
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

// retry counts what could not be undone as undone by hand, or as completed.
func (s *State) retry(byHand bool) {
	s.Saga = Begun
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

// resolvesSaga is refused while an undo is under way; one that waits is not
// sent any more.
func (n *next) resolvesSaga() {
	if n.keeps(OnePass) && n.From.isActing() {
		return
	}
	resolved := n.From
	resolved.Saga = Resolved
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
