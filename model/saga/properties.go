package saga

import (
	"github.com/agentoutbox/drainer/model/explore"
)

// What a run keeps.
const (
	NetZero       = "compensated: what was applied is undone, and nothing else is"
	NothingStands = "compensated: no step is on record as completed, in doubt or not undone"
	NewestIsFirst = "a step is undone after all that completed later"
	FailureIsBack = "the run of a step that failed is compensated"
	ClosedIsShut  = "no row of a closed run is claimed to act"
	ClosedIsLoud  = "a closed run takes no further step"
	UndoneOnce    = "an undo is applied once, and to what was applied"
	FailureTold   = "a saga that failed has an open incident"
	ResolvedRests = "a resolved saga sends nothing more"
)

var properties = []explore.Property[State]{
	explore.Always(NetZero, func(s *State) bool { return s.Saga != Compensated || s.all((*Step).isNetZero) }),
	explore.Always(NothingStands, func(s *State) bool { return s.Saga != Compensated || s.all((*Step).isClosed) }),
	explore.Always(UndoneOnce, func(s *State) bool { return s.all((*Step).isUndoneOnce) }),
	explore.Always(FailureTold, func(s *State) bool { return s.Saga != Failed || !s.all((*Step).isQuiet) }),
	explore.Always(ResolvedRests, func(s *State) bool {
		return s.Saga != Resolved || s.all(func(step *Step) bool { return !step.Undo.isOpen() })
	}),
	{Name: NewestIsFirst, Holds: newestIsFirst},
	{Name: FailureIsBack, Holds: failureIsBack},
	{Name: ClosedIsShut, Holds: closedIsShut},
	{Name: ClosedIsLoud, Holds: closedIsLoud},
}

func (s *State) all(holds func(*Step) bool) bool {
	for i := range s.Steps {
		if !holds(&s.Steps[i]) {
			return false
		}
	}
	return true
}

// isNetZero leaves out what an operator guessed: it is not known yet.
func (s *Step) isNetZero() bool { return s.Guessed || (!s.Flying && s.Effect == (s.Undone > 0)) }

func (s *Step) isClosed() bool {
	return s.Status != completed && s.Status != unknown && s.Status != notUndone && s.Place != Claimed
}

func (s *Step) isUndoneOnce() bool { return s.Undone <= 1 && (s.Effect || s.Undone == 0) }

func (s *Step) isQuiet() bool { return !s.Incident }

// newestIsFirst lets the commit that closes a step enqueue the undo of the one before.
func newestIsFirst(from State, step explore.Step[State]) bool {
	for i := range from.Steps {
		if from.Steps[i].Undo.Place != Absent || step.To.Steps[i].Undo.Place == Absent {
			continue
		}
		for j := range from.Steps {
			later := &from.Steps[j]
			isLater := later.Done > from.Steps[i].Done || later.Done == 0 && later.Place >= Claiming
			if j != i && isLater && !step.To.Steps[j].isClosed() {
				return false
			}
		}
	}
	return true
}

func failureIsBack(from State, step explore.Step[State]) bool {
	for i := range from.Steps {
		before, after := from.Steps[i].Row, step.To.Steps[i].Row
		fails := before.Place == Claimed && after.Place == Settled && after.Status == failed
		if fails && step.To.Saga == Open {
			return false
		}
	}
	return true
}

func closedIsShut(from State, step explore.Step[State]) bool {
	for i := range from.Steps {
		before, after := &from.Steps[i], &step.To.Steps[i]
		takes := before.Place == Queued && (after.Place == Claiming || after.Place == Claimed)
		if takes && from.Saga != Open && !after.Closed && !after.Asks {
			return false
		}
	}
	return true
}

func closedIsLoud(from State, step explore.Step[State]) bool {
	for i := range from.Steps {
		if from.Saga != Open && from.Steps[i].Place == Absent && step.To.Steps[i].Place != Absent {
			return false
		}
	}
	return true
}
