package mcp

import (
	"context"
	"sync"
	"time"
)

// sessions opens a session when one is needed, and another one when that has
// ended.
type sessions struct {
	open     func(context.Context) (*session, error)
	patience time.Duration // for opening
	life     context.Context
	end      context.CancelFunc
	work     sync.WaitGroup // openings, and ends of sessions

	mu     sync.Mutex
	latest *opening // nil before the first
}

// opening is a session, or the way to one. The fields are read after done.
type opening struct {
	done    chan struct{}
	session *session
	err     error
}

func newSessions(patience time.Duration, open func(context.Context) (*session, error)) *sessions {
	life, end := context.WithCancel(context.Background())
	return &sessions{open: open, patience: patience, life: life, end: end}
}

// take returns the session that is open, or waits until one is. An opening
// goes on when those who wait for it give up: others may want it.
func (s *sessions) take(ctx context.Context) (*session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o := s.current()
	select {
	case <-o.done:
		return o.session, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *sessions) current() *opening {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latest == nil || s.latest.isOver() {
		s.latest = s.begin()
	}
	return s.latest
}

func (o *opening) isOver() bool {
	select {
	case <-o.done:
		return o.err != nil || o.session.hasEnded()
	default:
		return false
	}
}

func (s *sessions) begin() *opening {
	o := &opening{done: make(chan struct{})}
	s.work.Go(func() {
		defer close(o.done)
		ctx, cancel := context.WithTimeout(s.life, s.patience)
		defer cancel()
		o.session, o.err = s.open(ctx)
	})
	return o
}

// retire sees to it that nobody gets the session any more. Calls under way end
// by themselves.
func (s *sessions) retire(retired *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latest != nil && s.latest.session == retired {
		s.latest = nil
		s.work.Go(retired.close)
	}
}

// close ends the session and waits for everything.
func (s *sessions) close() {
	s.end()
	s.mu.Lock()
	latest := s.latest
	s.latest = nil
	s.mu.Unlock()
	if latest != nil {
		<-latest.done
		if latest.session != nil {
			latest.session.close()
		}
	}
	s.work.Wait()
}
