package row

import "github.com/agentoutbox/drainer/dispatch"

const theClock = "the clock"

// clock is what time alone brings.
func (n *next) clock() {
	if n.From.Queue.Waits && !n.From.isSending() {
		n.Add(theClock, "ends the wait for earlier sends", func(s *State) { s.Queue.Waits = false })
	}
	if n.Class != dispatch.KeyIdempotent {
		return
	}
	if aged := n.From.aged(); aged != n.From {
		n.Add(theClock, "passes half of the key's life", func(s *State) { *s = aged })
	}
	if n.From.World.Memory == Ages && !n.From.isSending() {
		n.Add(theProvider, "forgets the key", func(s *State) { s.World.Memory = Nothing })
	}
}

// isSending reports whether a request is on its way.
func (s *State) isSending() bool {
	return s.World.Flying > 0 || s.Workers[0].Phase == Waiting || s.Workers[1].Phase == Waiting
}

func (s State) aged() State {
	for _, age := range []*Age{
		&s.FirstSent, &s.Since, &s.Queue.Sent,
		&s.Claims[0].Sent, &s.Claims[0].Began, &s.Claims[1].Sent, &s.Claims[1].Began,
		&s.Workers[0].Sent, &s.Workers[0].Began, &s.Workers[1].Sent, &s.Workers[1].Began,
	} {
		if *age == Fresh {
			*age = Old
		}
	}
	if s.World.Memory == Remembers {
		s.World.Memory = Ages
	}
	return s
}
