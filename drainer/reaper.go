package drainer

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// reap buries workers without a heartbeat and recovers their rows, again and
// again. Every worker does so; the store makes each death and each row one
// reaper's.
func (s *session) reap(ctx context.Context) {
	for ctx.Err() == nil {
		s.reapOnce(ctx)
		// Jitter keeps a fleet that started together from reaping together.
		interval := s.settings.Worker.Lease / 3
		pause(ctx, interval/2+time.Duration(rand.Float64()*float64(interval)))
	}
}

func (s *session) reapOnce(ctx context.Context) {
	recovered, err := s.recoverLost(ctx)
	s.observer.recovered(recovered)
	for _, settlement := range recovered {
		s.sagaMoved(settlement)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn("cannot recover the rows of dead workers now", "error", err)
	}
}

func (s *session) recoverLost(ctx context.Context) ([]Settlement, error) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	if err := s.store.Bury(ctx, s.settings.Worker.Lease); err != nil {
		return nil, err
	}
	return s.store.Reap(ctx, s.providerNames(), s.judgeLost)
}

// forgottenAfter is how long a dead worker's row waits for somebody who knows
// the fallback that was to serve it.
const forgottenAfter = 10 * time.Minute

// judgeLost leaves a row of a tool that is not configured here to a worker that
// knows its class.
func (s *session) judgeLost(row *Row) (Settlement, bool) {
	upstream, configured := s.upstreams[row.server()]
	if !configured {
		_, isOurs := s.upstreams[row.Tuple.Provider()]
		if isOurs && elapsed(row.ClaimedAt) > forgottenAfter {
			return lose(row, dispatch.Policy{Class: dispatch.NonIdempotent}), true // nobody can tell, and nobody may repeat it
		}
		return Settlement{}, false
	}
	policy, configured := upstream.provider.Tools[row.Tuple.Operation()]
	if !configured {
		return Settlement{}, false
	}
	return lose(row, policy), true
}
