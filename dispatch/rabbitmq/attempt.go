package rabbitmq

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
)

// attempt is one message on its way to the broker. The library's calls cannot
// be interrupted, so they run apart from the dispatch that waits for them. What
// is decided by whoever comes first: the publisher commits to writing, or the
// dispatch gives up, and then nothing is written any more.
type attempt struct {
	decided atomic.Bool
	result  chan dispatch.Result // has room for the one result
}

func (a *attempt) commit() bool { return a.decided.CompareAndSwap(false, true) }
func (a *attempt) giveUp() bool { return a.decided.CompareAndSwap(false, true) }

// publish sends one message and waits for its fate, or for the context's end,
// which it reports as well where it was time that ran out.
func (s *session) publish(ctx context.Context, m routed) (result dispatch.Result, timedOut bool) {
	a := &attempt{result: make(chan dispatch.Result, 1)}
	go s.carry(ctx, a, m)
	select {
	case result := <-a.result:
		return result, false
	case <-ctx.Done():
	}
	timedOut = errors.Is(ctx.Err(), context.DeadlineExceeded)
	if a.giveUp() {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: failure.Context(ctx)}, timedOut
	}
	select {
	case result := <-a.result: // both ended at once
		return result, false
	default:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: s.silence(ctx)}, timedOut
	}
}

// carry outlives the dispatch, and its context, where the broker answers late
// or never; it ends with the connection at the latest.
func (s *session) carry(ctx context.Context, a *attempt, m routed) {
	if s.blocked.Load() {
		a.result <- blocked
		return
	}
	publisher, err := s.acquire()
	if err != nil {
		a.result <- dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: channelFailure(err)}
		return
	}
	if s.blocked.Load() {
		s.release(publisher)
		a.result <- blocked
		return
	}
	if ctx.Err() == nil && a.commit() {
		a.result <- judge(publisher.publish(m), s.ended())
	}
	s.release(publisher)
}

// silence names why there was no answer.
func (s *session) silence(ctx context.Context) string {
	if s.blocked.Load() {
		return "blocked"
	}
	return failure.Context(ctx)
}
