package drainer

import (
	"sync"
	"sync/atomic"
)

// slots bounds the dispatches under way at one provider. The bound follows the
// size of the fleet, so it may shrink below what is in use.
type slots struct {
	elsewhere func() int // how many of them other sessions of this process use; nil for none

	mu     sync.Mutex
	freed  sync.Cond
	limit  int
	used   atomic.Int64 // written under mu; other sessions read it without
	lifted bool
}

func newSlots(limit int) *slots {
	s := &slots{limit: limit}
	s.freed.L = &s.mu
	return s
}

// acquire waits for a slot. It reports false, and takes none, where this worker
// has none to wait for.
func (s *slots) acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.lifted {
		room := s.room()
		if room == 0 {
			return false
		}
		if int(s.used.Load()) < room {
			break
		}
		s.freed.Wait()
	}
	s.used.Add(1)
	return true
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used.Add(-1)
	s.freed.Signal()
}

func (s *slots) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room()
}

func (s *slots) room() int {
	if s.elsewhere == nil {
		return s.limit
	}
	return max(0, s.limit-s.elsewhere())
}

func (s *slots) inUse() int { return int(s.used.Load()) }

func (s *slots) resize(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
	s.freed.Broadcast()
}

// lift lets everybody through: who waits must see that it is time to stop.
func (s *slots) lift() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lifted = true
	s.freed.Broadcast()
}
