package kafka

import "sync"

// sessions keeps those that no dispatch uses; there are never more than
// dispatches have run at once.
type sessions struct {
	open func() (*session, error)

	mu      sync.Mutex
	idle    []*session
	closing sync.WaitGroup
}

func (s *sessions) take() (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.idle) - 1; last >= 0 {
		taken := s.idle[last]
		s.idle = s.idle[:last]
		return taken, nil
	}
	return s.open()
}

// giveBack takes a session on whose connections nothing is under way.
func (s *sessions) giveBack(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, session)
}

// discard ends a session that may still wait for something. It does not let
// the caller wait with it.
func (s *sessions) discard(session *session) {
	s.closing.Go(session.client.Close)
}

func (s *sessions) close() {
	s.mu.Lock()
	idle := s.idle
	s.idle = nil
	s.mu.Unlock()
	for _, session := range idle {
		s.discard(session)
	}
	s.closing.Wait()
}
