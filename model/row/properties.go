package row

import "github.com/agentoutbox/drainer/model/explore"

// What the row's journey keeps.
const (
	OneEffect      = "a key has one effect, and one more for a duplicate that was accepted"
	OneRequest     = "what repeats its effect is sent once, and once more for a duplicate that was accepted"
	CompletedIsSo  = "completed has had its effect"
	FailedIsNot    = "failed and cancelled have had none"
	OnePlace       = "an intent is in the queue, in a claim or settled: in one of them"
	DoubtIsTold    = "an incident is open as long as the outcome is unknown"
	SettledStays   = "what is settled changes by an operator, or by late evidence of its effect"
	EvidenceCounts = "a settlement that knows of the effect leaves nothing on record against it, nor the row waiting"
)

var properties = []explore.Property[State]{
	explore.Always(OneEffect, func(s *State) bool { return s.World.Effects <= 1+s.World.Accepted }),
	explore.Always(OneRequest, func(s *State) bool { return s.World.Unproven <= 1+s.World.Accepted }),
	explore.Always(CompletedIsSo, func(s *State) bool { return !s.Settled || s.Newest != completed || s.World.Effects > 0 }),
	explore.Always(FailedIsNot, func(s *State) bool { return !s.deniesEffect() || s.World.Effects == 0 }),
	explore.Always(OnePlace, func(s *State) bool { return s.places() == 1 }),
	explore.Always(DoubtIsTold, func(s *State) bool { return s.Incident == (s.Settled && s.Newest == unknown) }),
	{Name: SettledStays, Holds: settledStays},
	{Name: EvidenceCounts, Holds: evidenceCounts},
}

func (s *State) deniesEffect() bool {
	return s.Settled && (s.Newest == failed || s.Newest == cancelled)
}

func (s *State) places() (places int) {
	if s.Queue.Is {
		places++
	}
	if s.Settled {
		places++
	}
	for _, claim := range s.Claims {
		if claim.Owner != Nobody && !claim.Settled {
			places++
		}
	}
	return places
}

func settledStays(from State, step explore.Step[State]) bool {
	if !from.Settled || step.Who == theOperator {
		return true
	}
	isLate := from.Newest != completed && step.To.Newest == completed
	return step.To.Settled && (step.To.Newest == from.Newest || isLate)
}

func (s *State) leavesDoubt() bool { return s.Queue.Is || s.Settled && s.Newest != completed }

func evidenceCounts(from State, step explore.Step[State]) bool {
	if step.What != settles && step.What != settlesUnheard {
		return true
	}
	for w := range from.Workers {
		if step.Who == workers[w] && from.Workers[w].knowsEffect() && step.To.leavesDoubt() {
			return false
		}
	}
	return true
}
