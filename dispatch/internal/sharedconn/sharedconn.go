// Package sharedconn keeps the one connection that all dispatches of an adapter
// share.
//
//	Get ──live?──▶ the connection
//	  └──no──▶ one dial for all callers ──▶ the connection, or the dial's error
//
// Nothing reconnects in the background: a connection that broke is replaced
// when a dispatch next needs one, so that nothing is sent later than a dispatch
// lasts.
package sharedconn

import (
	"context"
	"sync"
	"time"
)

// After a failed dial the next one waits: firstPause, then twice as long after
// each further failure, up to longestPause. A dial that succeeds begins again.
const (
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
)

// Conn is a connection as a protocol's library gives it. Its methods are called
// concurrently.
type Conn interface {
	comparable
	Alive() bool           // reports, without I/O, whether a dispatch may use it
	Done() <-chan struct{} // closed once the connection has ended
	Close()                // ends it; called at most once, also after Done
}

// Shared is the connection of one adapter. It is safe for concurrent use.
type Shared[C Conn] struct {
	dial     func(context.Context) (C, error)
	limit    time.Duration
	lifetime context.Context
	end      context.CancelFunc
	running  sync.WaitGroup // dials, and connections that have not ended

	mu        sync.Mutex
	current   C           // the zero C where there is none
	dialing   *attempt[C] // nil while no dial is under way
	pause     time.Duration
	notBefore time.Time // of the next dial
}

// attempt is one dial. Its result may be read once done is closed.
type attempt[C Conn] struct {
	done chan struct{}
	conn C
	err  error
}

// New connects to nothing yet. dial makes a connection whose life does not
// depend on the context that dial gets; that context ends after limit, or when
// the Shared is closed.
func New[C Conn](dial func(context.Context) (C, error), limit time.Duration) *Shared[C] {
	lifetime, end := context.WithCancel(context.Background())
	return &Shared[C]{dial: dial, limit: limit, lifetime: lifetime, end: end}
}

// Get returns the live connection, or waits for a dial. The error is the dial's,
// or that of ctx where ctx ends first; the dial then goes on for later callers.
func (s *Shared[C]) Get(ctx context.Context) (C, error) {
	var none C
	s.mu.Lock()
	if s.current != none && s.current.Alive() {
		defer s.mu.Unlock()
		return s.current, nil
	}
	if s.dialing == nil {
		dialing, notBefore := &attempt[C]{done: make(chan struct{})}, s.notBefore
		s.dialing = dialing
		s.running.Go(func() { s.connect(dialing, notBefore) })
	}
	dialing := s.dialing
	s.mu.Unlock()
	select {
	case <-dialing.done:
		return dialing.conn, dialing.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

func (s *Shared[C]) connect(dialing *attempt[C], notBefore time.Time) {
	pause := time.NewTimer(time.Until(notBefore))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-s.lifetime.Done():
	}
	ctx, cancel := context.WithTimeout(s.lifetime, s.limit)
	defer cancel()
	conn, err := s.dial(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(dialing.done)
	dialing.conn, dialing.err, s.dialing = conn, err, nil
	if err != nil {
		s.pause = min(max(2*s.pause, firstPause), longestPause)
		s.notBefore = time.Now().Add(s.pause)
		return
	}
	s.current, s.pause = conn, 0
	s.running.Go(func() {
		select {
		case <-conn.Done():
		case <-s.lifetime.Done():
			conn.Close()
		}
	})
}

// Forget makes the next Get dial, although the connection seems to live. It
// does not close the connection, on which other dispatches may still wait; the
// caller sees to its end, and Close ends it at the latest. Forget reports
// whether the connection was the current one, which is true once.
func (s *Shared[C]) Forget(conn C) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != conn {
		return false
	}
	var none C
	s.current = none
	return true
}

// Close cancels a dial and ends every connection, also forgotten ones. It returns
// when all have ended. Call no Get at the same time or later.
func (s *Shared[C]) Close() {
	s.end()
	s.running.Wait()
}
