package row

import "github.com/agentoutbox/drainer/dispatch"

func (n *next) attempts(w int) {
	worker := n.From.Workers[w]
	n.ends(w, "gives it back unsent", dispatch.Released)
	switch {
	case worker.Buried && n.keeps(LeaseBeforeSend):
	case worker.Lookup:
		n.asks(w)
	case n.keeps(AskedAtSend) && !n.Policy().MayStillSend(worker.history(Never)):
		n.ends(w, "must not send it any more", dispatch.NotSent)
	default:
		n.ends(w, "cannot send it", dispatch.NotSent)
		n.Add(workers[w], "sends it", func(s *State) {
			s.Workers[w].Phase, s.Workers[w].Began = Waiting, Fresh
			n.send(&s.World)
		})
	}
}

func (n *next) asks(w int) {
	if n.From.World.Effects > 0 {
		n.ends(w, "asks, and it was applied", dispatch.Completed)
	} else {
		n.Add(workers[w], "asks, and it was not applied", func(s *State) {
			s.Workers[w].end(dispatch.Absent)
			s.World.Unproven = 0
		})
	}
	n.ends(w, "asks, and nobody can tell", dispatch.Ambiguous)
	n.Add(workers[w], "asks for the last time, and nobody can tell", func(s *State) {
		s.Workers[w].Tries = LastTry
		s.Workers[w].end(dispatch.Ambiguous)
	})
}

// hears is how a request and its reply can end.
func (n *next) hears(w int) {
	n.Add(workers[w], "hears that it is applied", func(s *State) {
		n.apply(&s.World)
		s.Workers[w].end(dispatch.Completed)
	})
	n.Add(workers[w], "does not hear that it is applied", func(s *State) {
		n.apply(&s.World)
		s.Workers[w].end(dispatch.Ambiguous)
	})
	n.isRefused(w, "hears a refusal", dispatch.Rejected)
	n.isRefused(w, "hears that there is no room", dispatch.Throttled)
	if n.Class == dispatch.KeyIdempotent && n.From.World.Flying > 0 {
		n.ends(w, "hears that an earlier request is under way", dispatch.InFlight)
	}
	n.ends(w, "hears nothing, for the request was lost", dispatch.Ambiguous)
	n.Add(workers[w], "stops waiting, and the request goes on", func(s *State) {
		s.World.fly()
		s.Workers[w].end(dispatch.Ambiguous)
	})
}

func (n *next) isRefused(w int, what string, outcome dispatch.Outcome) {
	n.Add(workers[w], what, func(s *State) {
		s.World.Unproven = max(s.World.Unproven-1, 0)
		s.Workers[w].end(outcome)
	})
}

// ends is the end of an attempt, of which nobody else knows yet.
func (n *next) ends(w int, what string, outcome dispatch.Outcome) {
	n.Add(workers[w], what, func(s *State) { s.Workers[w].end(outcome) })
}

func (w *Worker) end(outcome dispatch.Outcome) { w.Phase, w.Outcome = Done, outcomeOf(outcome) }
