package row

import "github.com/agentoutbox/drainer/dispatch"

// forget drops what makes no difference any more: states that differ in
// nothing else are one. Where a guard is missing it could make one.
func (m Model) forget(s *State) {
	if s.Operator.Overtaken && m.keeps(OperatorFences) {
		s.Operator = Operator{}
	}
	// When this attempt began counts until another is known to have been first.
	if s.FirstSent != Never && (s.World.Accepted == 0 || s.Since != Never) {
		s.forgetBegins()
	}
	if m.keeps(LeaseBeforeSend) && (m.keeps(ClaimFences) || m.keeps(AttemptEndsOnce)) {
		for w := range s.Workers {
			s.Workers[w].forgetRefused()
		}
	}
}

func (s *State) forgetBegins() {
	for slot := range s.Claims {
		if s.Claims[slot].Sent != Never {
			s.Claims[slot].Began = Never
		}
	}
	for w := range s.Workers {
		if s.Workers[w].Sent != Never {
			s.Workers[w].Began = Never
		}
	}
}

// forgetRefused leaves a worker that lost its row at most what it knows of an
// effect.
func (w *Worker) forgetRefused() {
	if w.Phase == Idle || w.Claim != 0 {
		return
	}
	left := Worker{Buried: w.Buried}
	if w.Phase == Waiting || w.knowsEffect() {
		left.Phase, left.Outcome = w.Phase, w.Outcome
	}
	*w = left
}

func (w *Worker) knowsEffect() bool { return w.Phase == Done && w.Outcome.Is() == dispatch.Completed }
