package nats

import (
	"context"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// connectTimeout bounds one attempt to connect where dispatches may take longer.
const connectTimeout = 10 * time.Second

// connection is the one link that all dispatches share, made when it is first
// needed, and anew when it was lost.
type connection struct {
	settings Settings
	network  dispatch.Network
	timeout  time.Duration // of a dispatch
	ctx      context.Context
	stop     context.CancelFunc

	mu      sync.Mutex
	current *link    // nil or lost: connect
	attempt *attempt // nil while nobody connects
	closed  bool
}

// attempt is one try to connect, for all who wait for it.
type attempt struct {
	done chan struct{}
	link *link
	err  error
}

func newConnection(settings Settings, network dispatch.Network, timeout time.Duration) *connection {
	ctx, stop := context.WithCancel(context.Background())
	return &connection{settings: settings, network: network, timeout: timeout, ctx: ctx, stop: stop}
}

// get waits for a link no longer than the dispatch lasts; the attempt goes on
// for those who come after.
func (c *connection) get(ctx context.Context) (*link, error) {
	c.mu.Lock()
	if c.current != nil && c.current.isUp() {
		defer c.mu.Unlock()
		return c.current, nil
	}
	if c.attempt == nil {
		c.attempt = &attempt{done: make(chan struct{})}
		go c.try(c.attempt)
	}
	attempt := c.attempt
	c.mu.Unlock()
	select {
	case <-attempt.done:
		return attempt.link, attempt.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *connection) try(attempt *attempt) {
	ctx, cancel := context.WithTimeout(c.ctx, c.limit())
	defer cancel()
	link, err := connect(ctx, c.settings, c.network, c.timeout)
	attempt.link, attempt.err = link, err
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(attempt.done)
	c.attempt = nil
	if err != nil {
		return
	}
	c.current = link
	if c.closed {
		link.close()
	}
}

func (c *connection) limit() time.Duration {
	if c.timeout > 0 {
		return min(c.timeout, connectTimeout)
	}
	return connectTimeout
}

func (c *connection) close() {
	c.stop()
	c.mu.Lock()
	c.closed = true
	attempt, current := c.attempt, c.current
	c.mu.Unlock()
	if attempt != nil {
		<-attempt.done
	}
	if current != nil {
		current.close()
	}
}
