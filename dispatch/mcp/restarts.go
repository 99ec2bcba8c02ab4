package mcp

import (
	"context"
	"sync"
	"time"
)

const (
	firstRest = 100 * time.Millisecond
	longRest  = 30 * time.Second
	// steady is how long a child lives that does not die of being started.
	steady = 10 * time.Second
)

// restarts spaces out the starts of a child that keeps dying. The first
// restart is at once.
type restarts struct {
	mu    sync.Mutex
	rest  time.Duration
	start time.Time // not before
}

// await waits for leave to start the child, unless ctx ends before it comes.
func (r *restarts) await(ctx context.Context) error {
	r.mu.Lock()
	rest := time.Until(r.start)
	r.mu.Unlock()
	if rest <= 0 {
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < rest {
		return &startError{"child_backoff"}
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ended takes note of a child that lived for so long.
func (r *restarts) ended(lived time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case lived >= steady:
		r.rest = 0
	default:
		r.start = time.Now().Add(r.rest)
		r.rest = min(max(2*r.rest, firstRest), longRest)
	}
}
