package exec

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// restarts is the wait before a child is replaced. One that lived for the cap
// has shown that it can, and its end counts as the first.
var restarts = dispatch.Backoff{Base: 500 * time.Millisecond, Cap: 30 * time.Second}

// supervisor keeps one child, or knows why there is none.
type supervisor struct {
	launch func(context.Context) (*running, string)
	ctx    context.Context // ends with the adapter
	cancel context.CancelFunc

	mu       sync.Mutex
	current  *generation // nil while there is no child
	failures int         // in a row
	retryAt  time.Time
	why      string // there is no child: an error class
}

// generation is one child from before its start until after its end.
type generation struct {
	ready chan struct{} // closed once the child serves, or will not
	over  chan struct{} // closed once nothing of it is left
	child *running      // read after ready; nil where it did not start
}

func supervise(launch func(context.Context) (*running, string)) *supervisor {
	ctx, cancel := context.WithCancel(context.Background())
	return &supervisor{launch: launch, ctx: ctx, cancel: cancel, why: down}
}

// serving is the child, started if there is none, or the reason why the
// request was not sent.
func (s *supervisor) serving(ctx context.Context) (*running, dispatch.Result) {
	generation, refusal := s.generation()
	if generation == nil {
		return nil, refusal
	}
	select {
	case <-generation.ready:
	case <-ctx.Done():
		return nil, notSent(failure.Context(ctx))
	}
	if generation.child == nil {
		return nil, s.refusal()
	}
	return generation.child, dispatch.Result{}
}

func (s *supervisor) generation() (*generation, dispatch.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		if s.ctx.Err() != nil || time.Now().Before(s.retryAt) {
			return nil, s.refusalLocked()
		}
		s.current = &generation{ready: make(chan struct{}), over: make(chan struct{})}
		go s.oversee(s.current)
	}
	return s.current, dispatch.Result{}
}

func (s *supervisor) refusal() dispatch.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusalLocked()
}

// refusalLocked asks the engine not to come back before the next start.
func (s *supervisor) refusalLocked() dispatch.Result {
	refusal := notSent(s.why)
	refusal.RetryAfter = max(0, time.Until(s.retryAt))
	return refusal
}

// oversee lives as long as a child.
func (s *supervisor) oversee(g *generation) {
	defer close(g.over)
	began := time.Now()
	child, class := s.launch(s.ctx)
	if child == nil {
		s.ended(class, 0)
		close(g.ready)
		return
	}
	g.child = child
	close(g.ready)
	<-child.done
	s.ended(down, time.Since(began))
}

func (s *supervisor) ended(class string, lived time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lived >= restarts.Cap {
		s.failures = 0
	}
	s.failures++
	s.current = nil
	s.why = class
	s.retryAt = time.Now().Add(restarts.Delay(s.failures, 0, rand.Float64()))
}

// close is called after the last request was answered.
func (s *supervisor) close() error {
	s.mu.Lock()
	s.cancel()
	last := s.current
	s.mu.Unlock()
	if last == nil {
		return nil
	}
	<-last.ready
	var err error
	if last.child != nil {
		err = last.child.close()
	}
	<-last.over
	return err
}
