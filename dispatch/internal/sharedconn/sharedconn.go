// Package sharedconn keeps the one connection that all dispatches of an adapter share.
//
//	Get ──live?──▶ the connection
//	  └──no──▶ one dial for all callers ──▶ the connection, or the dial's error
//
// Nothing reconnects in the background. A broken connection is replaced when a dispatch next needs one, so that
// nothing is sent after the end of its dispatch.
package sharedconn

import (
	"context"
	"sync"
	"time"
)

// After a failed dial, the next dial waits for firstPause. The pause doubles after each further failure, up to
// longestPause. A successful dial resets it.
const (
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
)

// Conn is a connection of a protocol's library. Its methods are called concurrently.
type Conn interface {
	comparable
	Alive() bool           // reports, without I/O, whether a dispatch may use it
	Done() <-chan struct{} // closed once the connection has ended
	Close()                // ends the connection; called at most once, also after Done
}

// Shared is the connection of one adapter. It is safe for concurrent use.
type Shared[C Conn] struct {
	dial     func(context.Context) (C, error)
	limit    time.Duration
	lifetime context.Context
	end      context.CancelFunc
	running  sync.WaitGroup // dials, and connections that have not ended

	mu        sync.Mutex
	current   C           // the zero C if there is none
	dialing   *attempt[C] // nil while no dial is under way
	pause     time.Duration
	notBefore time.Time // the earliest time of the next dial
}

// attempt is one dial. Its result may be read once done is closed.
type attempt[C Conn] struct {
	done chan struct{}
	conn C
	err  error
}

// New connects to nothing yet. dial makes a connection that must outlive dial's context. That context ends after
// limit, or when the Shared is closed.
func New[C Conn](dial func(context.Context) (C, error), limit time.Duration) *Shared[C] {
	lifetime, end := context.WithCancel(context.Background())
	return &Shared[C]{dial: dial, limit: limit, lifetime: lifetime, end: end}
}

// Get returns the live connection, or waits for a dial. It returns the dial's error, or the error of ctx if ctx ends
// first. The dial then continues for later callers.
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

// Forget makes the next Get dial, although the connection seems to live. It does not close the connection, since
// other dispatches may still wait on it. The caller must end the connection; otherwise Close ends it. Forget reports
// whether the connection was the current one, which is true only once.
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

// Close cancels a dial and ends every connection, also forgotten ones. It returns when all have ended. Get must not
// be called during or after Close.
func (s *Shared[C]) Close() {
	s.end()
	s.running.Wait()
}
