package drainer

import (
	"context"
	"time"
)

// fleetInterval bounds how long an opened breaker, a pause, the end of a run or
// another worker's arrival goes unnoticed by what was claimed before.
const fleetInterval = 500 * time.Millisecond

// watchFleet keeps gates and shares fresh. While the database is away the last
// ones stand: nothing is claimed then anyway.
func (s *session) watchFleet(ctx context.Context) {
	for {
		pause(ctx, fleetInterval)
		if ctx.Err() != nil {
			return
		}
		if err := s.readFleet(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug("cannot read what the workers share; the last known stands", "error", err)
		}
	}
}

func (s *session) readFleet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	gates, err := s.store.Gates(ctx, s.worker)
	if err != nil {
		return err
	}
	closed, err := s.store.Closed(ctx, s.worker)
	if err != nil {
		return err
	}
	s.closings.learn(closed)
	for _, gate := range gates {
		if upstream, configured := s.upstreams[gate.Provider]; configured {
			s.observer.gate(upstream.learn(gate), gate)
		}
	}
	return nil
}

func (s *session) liftSlots() {
	for _, upstream := range s.upstreams {
		upstream.slots.lift()
	}
}
