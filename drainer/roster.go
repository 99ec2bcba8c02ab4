package drainer

import (
	"context"
	"slices"
	"sync"
)

// roster is the sessions of one process, in the order in which they joined. The
// newest one claims; those before it finish what they began. The zero value has
// none.
type roster struct {
	mu       sync.Mutex
	sessions []*session
	changed  chan struct{} // closed at the next exit
}

func (r *roster) enter(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions = append(r.sessions, s)
}

func (r *roster) exit(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions = slices.DeleteFunc(r.sessions, func(other *session) bool { return other == s })
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

func (r *roster) all() []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sessions)
}

// newest is nil while nobody has joined.
func (r *roster) newest() *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sessions) == 0 {
		return nil
	}
	return r.sessions[len(r.sessions)-1]
}

// inUse counts the dispatches that the other sessions have under way at a provider.
func (r *roster) inUse(provider string, but *session) (dispatches int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		if upstream, serves := s.upstreams[provider]; serves && s != but {
			dispatches += upstream.slots.inUse()
		}
	}
	return dispatches
}

// awaitElders returns when every session that joined before has left, or when
// ctx ends.
func (r *roster) awaitElders(ctx context.Context, s *session) {
	for ctx.Err() == nil {
		changed := r.elders(s)
		if changed == nil {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// elders is nil if s is the oldest, else closed when the next session leaves.
func (r *roster) elders(s *session) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sessions) == 0 || r.sessions[0] == s {
		return nil
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}
