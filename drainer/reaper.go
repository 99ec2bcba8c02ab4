package drainer

import (
	"context"
	"math/rand/v2"
	"time"
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

// judgeLost leaves a row of a tool that is not configured here to a worker that
// knows its class.
func (s *session) judgeLost(row *Row) (Settlement, bool) {
	upstream, configured := s.upstreams[row.server()]
	if !configured {
		return Settlement{}, false
	}
	policy, configured := upstream.provider.Tools[row.Tuple.Operation()]
	if !configured {
		return Settlement{}, false
	}
	return lose(row, policy), true
}
