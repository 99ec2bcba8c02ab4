package compensations

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/agentoutbox/drainer/internal/failpoint"

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
		if took.Action != Mark {
			return nil
		}
	}
}

// pass takes one action in one transaction, and says which. Reading and acting
// are statements of their own after the stop, so that the plan is made from
// what the stop has waited for.
func (s *Saga) pass(ctx context.Context, agentRunID string) (took Decision, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		run, begun, err := lock(ctx, tx, agentRunID)
		if err != nil || !begun {
			return err
		}
		failpoint.SagaLocked.Hit()
		if err := run.hold(ctx); err != nil {
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
func (s *Saga) decide(ctx context.Context, steps []Step) (Decision, error) {
	tools := s.tools.Load()
	decided := Plan(steps, tools.policies)
	if decided.Action != Undo {
		return decided, nil
	}
	policy, _ := tools.policies.of(decided.Step)
	payload, err := tools.mappings[policy.Reversal.Payload].Payload(ctx, decided.Step.Effect)
	var unmappable MappingError
	if errors.As(err, &unmappable) {
		return Decision{Action: Fail, Step: decided.Step, why: failure(unmappable)}, nil
	}
	decided.payload = payload
	return decided, err
}

func (s *Saga) act(ctx context.Context, run run, decided Decision) error {
	switch decided.Action {
	case Wait:
		return nil
	case Finish:
		return run.finish(ctx)
	case Undo:
		err := run.undo(ctx, decided)
		failpoint.UndoWritten.Hit()
		return err
	case Mark:
		return run.mark(ctx, decided.Step)
	}
	return run.fail(ctx, decided.Step, decided.why)
}
