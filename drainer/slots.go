package drainer

import "sync"

// slots bounds the dispatches under way at one provider. The bound follows the
// size of the fleet, so it may shrink below what is in use.
type slots struct {
	mu     sync.Mutex
	freed  sync.Cond
	limit  int
	used   int
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
	for s.used >= s.limit && !s.lifted {
		if s.limit == 0 {
			return false
		}
		s.freed.Wait()
	}
	s.used++
	return true
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	s.freed.Signal()
}

func (s *slots) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit
}

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
