package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/drainer"
)

var (
	//go:embed sql/finish.sql
	finishSQL string
	//go:embed sql/hold.sql
	holdSQL string
	//go:embed sql/idle.sql
	idleSQL string
)

// Turn is one batch and one commit: without BEGIN, the batch is an implicit
// transaction that commits or rolls back as a whole at its Sync. The rows it
// returns are committed, so whoever gets them may send.
func (s *Store) Turn(ctx context.Context, worker string, turn drainer.Turn) (drainer.TurnReply, error) {
	reply, err := s.turn(ctx, worker, turn)
	if isDataError(err) {
		reply, err = s.turnAround(ctx, worker, turn)
	}
	if err == nil {
		err = s.recordLate(ctx, worker, turn.Settle, reply.Refused)
	}
	if err != nil {
		return drainer.TurnReply{}, err
	}
	return reply, nil
}

// turn expects that no row was settled before, and looks where one was: a lane
// repeats a turn whose reply was lost.
func (s *Store) turn(ctx context.Context, worker string, turn drainer.Turn) (drainer.TurnReply, error) {
	reply, err := s.turnOnce(ctx, worker, turn, false)
	if isUniqueViolation(err) {
		reply, err = s.turnOnce(ctx, worker, turn, true)
	}
	return reply, err
}

func (s *Store) turnOnce(ctx context.Context, worker string, turn drainer.Turn, repeated bool) (drainer.TurnReply, error) {
	reply := drainer.TurnReply{Claimed: make([]drainer.ClaimReply, len(turn.Claims))}
	var batch pgx.Batch
	queueHold(&batch, worker, turn)
	queueSettle(&batch, worker, turn.Settle, repeated, &reply.Refused)
	queueFinish(&batch, worker, turn.Finish)
	queueBreakers(&batch, worker, turn.Settle)
	queueIdle(&batch, turn.Claims)
	queueClaims(&batch, worker, turn.Claims, reply.Claimed)
	if err := s.turns.SendBatch(ctx, &batch).Close(); err != nil {
		return drainer.TurnReply{}, fmt.Errorf("turn: %w", err)
	}
	return reply, nil
}

func isUniqueViolation(err error) bool {
	var refusal *pgconn.PgError
	return errors.As(err, &refusal) && refusal.Code == "23505"
}

func queueHold(batch *pgx.Batch, worker string, turn drainer.Turn) {
	if slices.ContainsFunc(turn.Settle, func(s drainer.Settlement) bool { return s.Repeats }) {
		batch.Queue(holdSQL, worker, turn.Finish)
	}
}

func queueFinish(batch *pgx.Batch, worker string, claims []int64) {
	if len(claims) > 0 {
		batch.Queue(finishSQL, worker, claims)
	}
}

func queueIdle(batch *pgx.Batch, claims []drainer.Claim) {
	var providers []string
	var waiting []bool
	for _, claim := range claims {
		if claim.Idle != drainer.IdleUnchanged {
			providers = append(providers, claim.Provider)
			waiting = append(waiting, claim.Idle == drainer.IdleWaiting)
		}
	}
	if len(providers) > 0 {
		batch.Queue(idleSQL, providers, waiting, drainer.IdleFor.Seconds())
	}
}
