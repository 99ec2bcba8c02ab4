package exec

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

// restarts is the backoff before a child is replaced. After a child that lived for at least Cap, it starts again
// from the first delay.
var restarts = dispatch.Backoff{Base: 500 * time.Millisecond, Cap: 30 * time.Second}

// supervisor keeps one child, or the reason why there is none.
type supervisor struct {
	launch func(context.Context) (*running, fate)
	ctx    context.Context // ends with the adapter
	cancel context.CancelFunc

	mu       sync.Mutex
	current  *generation // nil while there is no child
	failures int         // consecutive failures
	retryAt  time.Time
	why      fate // how the last child ended
}

// fate describes how a child ended.
type fate struct {
	class   string
	problem *dispatch.Problem
}

// generation is one child, from before its start until after its end.
type generation struct {
	ready chan struct{} // closed once the child serves, or has failed to start
	over  chan struct{} // closed once the child and its readers have ended
	child *running      // may be read after ready; nil if it did not start
}

func supervise(launch func(context.Context) (*running, fate)) *supervisor {
	ctx, cancel := context.WithCancel(context.Background())
	return &supervisor{launch: launch, ctx: ctx, cancel: cancel, why: fate{class: down}}
}

func (s *supervisor) reach(ctx context.Context) (protocol.Peer, dispatch.Result) {
	child, refusal := s.serving(ctx)
	if child == nil {
		return nil, refusal
	}
	return child, dispatch.Result{}
}

// serving returns the child and starts it if there is none, or returns the result of a request that was not sent.
func (s *supervisor) serving(ctx context.Context) (*running, dispatch.Result) {
	generation, refusal := s.generation()
	if generation == nil {
		return nil, refusal
	}
	select {
	case <-generation.ready:
	case <-ctx.Done():
		return nil, protocol.NotSent(evidence.Context(ctx))
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

// refusalLocked returns the result of a request for which there is no child. It asks the engine to wait for the next
// start.
func (s *supervisor) refusalLocked() dispatch.Result {
	refusal := protocol.NotSent(s.why.class)
	refusal.Problem = s.why.problem
	refusal.RetryAfter = max(0, time.Until(s.retryAt))
	return refusal
}

// oversee starts a child and waits for its end.
func (s *supervisor) oversee(g *generation) {
	defer close(g.over)
	began := time.Now()
	child, failure := s.launch(s.ctx)
	if child == nil {
		s.ended(failure, 0)
		close(g.ready)
		return
	}
	g.child = child
	close(g.ready)
	<-child.done
	s.ended(fate{down, child.fate.problem}, time.Since(began))
}

func (s *supervisor) ended(why fate, lived time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lived >= restarts.Cap {
		s.failures = 0
	}
	s.failures++
	s.current = nil
	s.why = why
	s.retryAt = time.Now().Add(restarts.Delay(s.failures, 0, rand.Float64()))
}

// close ends the child. It is called after the last request was answered.
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

// maxAbandoned is how many requests a child may leave unanswered after their dispatches have ended.
const maxAbandoned = 1000

// calls are the requests that a child has not answered yet, by their ids.
type calls struct {
	mu        sync.Mutex
	waiting   map[string]chan answer // nil if the dispatch has ended
	abandoned int
	closed    bool
	over      fate // how the child ended, once that is known
	heard     time.Time
}

// answer is the end of a request: a result, or a fate if there is no result.
type answer struct {
	result protocol.Result
	fate   fate
}

func (a answer) evidence(class dispatch.Class) dispatch.Result {
	if a.fate.class != "" {
		doubt := protocol.Ambiguous(a.fate.class)
		doubt.Problem = a.fate.problem
		return doubt
	}
	return a.result.Evidence(class)
}

func newCalls() *calls { return &calls{waiting: map[string]chan answer{}} }

// begin returns false if the child accepts no more requests. Otherwise the call gets exactly one answer, unless it
// is forgotten or abandoned before.
func (c *calls) begin(id string) (answers <-chan answer, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	waiting := make(chan answer, 1)
	c.waiting[id] = waiting
	return waiting, true
}

// forget removes a request that the child cannot have read.
func (c *calls) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// abandon marks a request whose dispatch has ended, so that its answer will be dropped. It returns false if the
// request was answered already.
func (c *calls) abandon(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, unanswered := c.waiting[id]; !unanswered {
		return false
	}
	c.waiting[id] = nil
	c.abandoned++
	return true
}

func (c *calls) tooManyAbandoned() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.abandoned > maxAbandoned
}

func (c *calls) heardSince(since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard.After(since)
}

// settle passes an answer to the dispatch that waits for it. It returns false for an answer to an unknown request,
// or to a request that was answered before. An answer that breaks the protocol in another way leaves only its own
// request in doubt.
func (c *calls) settle(line []byte) bool {
	result, err := protocol.ParseResult(line)
	settled := answer{result: result}
	if err != nil {
		settled.fate.class = "invalid_result"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting, asked := c.waiting[result.ID]
	if !asked {
		return false
	}
	c.heard = time.Now()
	delete(c.waiting, result.ID)
	if waiting == nil {
		c.abandoned--
	} else {
		waiting <- settled
	}
	return true
}

// close makes begin refuse all further calls.
func (c *calls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// refusal is the result of a request that came after the child's end.
func (c *calls) refusal() dispatch.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	refusal := protocol.NotSent(down)
	refusal.Problem = c.over.problem
	return refusal
}

// fail ends all calls under way. They will get no answer.
func (c *calls) fail(why fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = why
	for id, waiting := range c.waiting {
		delete(c.waiting, id)
		if waiting != nil {
			waiting <- answer{fate: why}
		}
	}
}
