package saga

import (
	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
)

var passNames = [2]string{"a pass", "another pass"}

// pass reads and acts in one transaction. In between others may commit.
func (n *next) pass(p int) {
	if n.From.Passes[p].Acts {
		n.acts(p)
		return
	}
	isTwin := p > 0 && !n.From.Passes[0].Acts // what it can do, the first one can
	if n.From.Saga != Begun || isTwin || (n.keeps(OnePass) && n.From.isActing()) || n.haltWaits() {
		return
	}
	halted := n.From
	halted.halt()
	plan := n.plan(&halted)
	switch {
	case plan.Action != compensations.Wait:
		n.Add(passNames[p], "reads: "+plans[plan.Action], func(s *State) {
			*s = halted
			s.Passes[p] = Pass{Acts: true, Plan: plan.Action, Step: int8(n.idOf(int(plan.Step.IntentID)))}
		})
	case halted != n.From:
		n.Add(passNames[p], "stops what waits", func(s *State) {
			*s = halted
			s.endHalt((*Row).cancel)
		})
	}
}

var plans = [...]string{
	compensations.Undo: "the newest effect is to be undone", compensations.Mark: "an undo is to be noted",
	compensations.Fail: "a step cannot be undone", compensations.Finish: "nothing is left to undo",
}

// haltWaits reports whether somebody holds a row that a pass must not miss.
func (n *next) haltWaits() bool {
	for _, step := range n.From.Steps {
		if step.Place == Halting || (step.Place == Claiming && n.keeps(HaltWaits)) {
			return true
		}
	}
	return false
}

// halt takes what nobody may have applied out of the queue.
func (s *State) halt() {
	for i := range s.Steps {
		if step := &s.Steps[i]; step.Place == Queued && !step.Maybe && !step.Asks {
			step.Place = Halting
		}
	}
}

// endHalt is the end of the transaction: one way or the other.
func (s *State) endHalt(end func(*Row)) {
	for i := range s.Steps {
		if row := &s.Steps[i].Row; row.Place == Halting {
			end(row)
		}
	}
}

// plan asks the saga what comes next.
func (m Model) plan(s *State) compensations.Decision {
	var steps []compensations.Step
	for i, step := range s.Steps {
		if step.Place != Absent && step.Place != Committing {
			steps = append(steps, m.seen(i, step))
		}
	}
	return compensations.Plan(steps, m.policies)
}

// idOf is an intent's id, and idOf again is the place of its step.
func (m Model) idOf(i int) int {
	if m.keeps(NewestFirst) {
		return i
	}
	return Steps - 1 - i
}

// seen is what a pass reads of a step.
func (m Model) seen(i int, step Step) compensations.Step {
	seen := compensations.Step{IntentID: int64(m.idOf(i)), Status: m.statusOf(step)}
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
		step.Place == Claiming, // which nobody has waited for
		isOpen && !m.keeps(OpenComesFirst):
		return statusCancelled
	case step.Place == Claimed && step.Status == pending:
		return statusInProgress
	}
	return step.Status.Is()
}

func (n *next) acts(p int) {
	pass := n.From.Passes[p]
	n.Add(passNames[p], "acts, and commits", func(s *State) {
		s.Passes[p] = Pass{}
		s.endHalt((*Row).cancel)
		n.act(s, pass)
	})
	n.Chance(passNames[p], "dies", func(s *State) {
		s.Passes[p] = Pass{}
		s.endHalt((*Row).putBack)
	})
}

func (m Model) act(s *State, pass Pass) {
	step := &s.Steps[pass.Step]
	switch pass.Plan {
	case compensations.Undo:
		m.enqueueUndo(step)
	case compensations.Mark:
		step.Status = compensated
	case compensations.Fail:
		step.Status, step.Incident, s.Saga = notUndone, m.keeps(FailureIsTold), Failed
	case compensations.Finish:
		s.Saga = Compensated
	}
}

// enqueueUndo meets the unique index where there is one already.
func (m Model) enqueueUndo(step *Step) {
	if step.Undo.Place == Absent || !m.keeps(OneUndo) {
		step.Undo = Row{Place: Queued}
	}
}
