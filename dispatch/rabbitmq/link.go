package rabbitmq

import (
	"context"
	"sync"
	"time"
)

const connectTimeout = 30 * time.Second

// link keeps the one session that dispatches share. It connects when a
// dispatch needs a session and there is none, once for all who wait.
type link struct {
	connect  func(context.Context) (*session, error)
	patience time.Duration // how long a connection attempt, or a message under way, may take

	lifetime context.Context
	end      context.CancelFunc
	running  sync.WaitGroup // connection attempts, and sessions that are open

	mu      sync.Mutex
	current *session    // nil or dead where there is none
	attempt *connecting // nil where nobody is connecting
}

// connecting is an attempt to connect; its result may be read after done.
type connecting struct {
	done    chan struct{}
	session *session
	err     error
}

func newLink(connect func(context.Context) (*session, error), timeout time.Duration) *link {
	if timeout <= 0 {
		timeout = connectTimeout
	}
	lifetime, end := context.WithCancel(context.Background())
	return &link{connect: connect, patience: timeout, lifetime: lifetime, end: end}
}

// session is the current one, or a new one. Not the caller's context but the
// link's own bounds the attempt to connect, because others wait for it, too.
func (l *link) session(ctx context.Context) (*session, error) {
	l.mu.Lock()
	if l.current != nil && !l.current.ended() {
		defer l.mu.Unlock()
		return l.current, nil
	}
	if l.attempt == nil {
		l.attempt = &connecting{done: make(chan struct{})}
		l.running.Add(1)
		go l.establish(l.attempt)
	}
	attempt := l.attempt
	l.mu.Unlock()
	select {
	case <-attempt.done:
		return attempt.session, attempt.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *link) establish(attempt *connecting) {
	defer l.running.Done()
	ctx, cancel := context.WithTimeout(l.lifetime, l.patience)
	defer cancel()
	attempt.session, attempt.err = l.connect(ctx)
	if attempt.err == nil {
		l.running.Add(1)
		go l.closeInTheEnd(attempt.session)
	}
	l.mu.Lock()
	l.current, l.attempt = attempt.session, nil
	l.mu.Unlock()
	close(attempt.done)
}

func (l *link) closeInTheEnd(session *session) {
	defer l.running.Done()
	session.watch(l.lifetime)
}

// retire gives up a session on which the broker has gone silent. Messages
// that are still under way on it keep the time that they have.
func (l *link) retire(silent *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == silent {
		l.current = nil
		silent.closeAfter(l.patience)
	}
}

// close ends every session and waits until all is gone.
func (l *link) close() {
	l.end()
	l.running.Wait()
}
