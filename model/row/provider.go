package row

import "github.com/agentoutbox/drainer/dispatch"

const theProvider = "the provider"

// Where counting ends: more than that differs in nothing.
const (
	many  = 3
	aloft = 1 // requests on their way that nobody waits for, beside those of the workers
)

// send is a request that leaves.
func (m Model) send(w *World) {
	if m.Class == dispatch.NonIdempotent {
		w.Unproven = min(w.Unproven+1, many)
	}
}

// fly leaves a request on its way, with nobody who waits for its reply.
func (w *World) fly() { w.Flying = min(w.Flying+1, aloft) }

// apply is the arrival of a request.
func (m Model) apply(w *World) {
	switch {
	case m.Class == dispatch.NonIdempotent:
		w.Effects = min(w.Effects+1, many)
	case m.Class != dispatch.KeyIdempotent:
		w.Effects = 1 // again is no more than once
	case w.Memory == Nothing:
		w.Effects, w.Memory = min(w.Effects+1, many), Remembers
	}
}

func (n *next) provider() {
	if n.From.World.Flying == 0 {
		return
	}
	n.Add(theProvider, "applies a request that nobody waits for", func(s *State) {
		s.World.Flying--
		n.apply(&s.World)
	})
	n.Add(theProvider, "never gets a request that nobody waits for", func(s *State) { s.World.Flying-- })
}
