package compensations

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Saga takes runs back, one action at a time.
type Saga struct {
	pool     *pgxpool.Pool
	tools    atomic.Pointer[tools] // as configured now; a pass heeds one configuration throughout
	observer *observer
	log      *slog.Logger
}

// Advance takes a run back as far as it can go now. It may be called at any
// time, more than once, and by several processes.
func (s *Saga) Advance(ctx context.Context, agentRunID string) error {
	for {
		took, err := s.pass(ctx, agentRunID)
		if err != nil {
			return err
		}
		s.observer.took(took)
		if took.action != mark {
			return nil
		}
	}
}

// pass takes one action in one transaction, and says which. Reading and acting
// are statements of their own after the stop, so that the plan is made from
// what the stop has waited for.
func (s *Saga) pass(ctx context.Context, agentRunID string) (took decision, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		run, begun, err := lock(ctx, tx, agentRunID)
		if err != nil || !begun {
			return err
		}
		if err := run.halt(ctx); err != nil {
			return err
		}
		steps, err := run.steps(ctx)
		if err != nil {
			return err
		}
		if took, err = s.decide(ctx, steps); err != nil {
			return err
		}
		return s.act(ctx, run, took)
	})
	return took, err
}

// decide also makes the undo's payload: an undo that cannot be made fails the
// saga like one that is refused.
func (s *Saga) decide(ctx context.Context, steps []Step) (decision, error) {
	tools := s.tools.Load()
	decided := plan(steps, tools.policies)
	if decided.action != undo {
		return decided, nil
	}
	policy, _ := tools.policies.of(decided.step)
	payload, err := tools.mappings[policy.Reversal.Payload].Payload(ctx, decided.step.Effect)
	var unmappable MappingError
	if errors.As(err, &unmappable) {
		return decision{action: fail, step: decided.step, why: failure(unmappable)}, nil
	}
	decided.payload = payload
	return decided, err
}

func (s *Saga) act(ctx context.Context, run run, decided decision) error {
	switch decided.action {
	case wait:
		return nil
	case finish:
		return run.finish(ctx)
	}
	if held, err := run.hold(ctx, decided.step); err != nil || !held {
		return err // pruned in between: the next pass plans without it
	}
	switch decided.action {
	case undo:
		return run.undo(ctx, decided)
	case mark:
		return run.mark(ctx, decided.step)
	case fail:
		return run.fail(ctx, decided.step, decided.why)
	}
	return nil
}
