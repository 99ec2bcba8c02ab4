package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/drainer"
)

// turnAround settles around what cannot be stored, and then does the rest.
func (s *Store) turnAround(ctx context.Context, worker string, turn drainer.Turn) (drainer.TurnReply, error) {
	refused, err := s.settleAround(ctx, worker, turn.Settle)
	if err != nil {
		return drainer.TurnReply{}, err
	}
	reply, err := s.turn(ctx, worker, drainer.Turn{Finish: turn.Finish, Claims: turn.Claims})
	reply.Refused = refused
	return reply, err
}

// settleAround keeps one unstorable response from holding up all the others: it
// halves the settlements until the offender is alone, and stores that one
// without its body.
func (s *Store) settleAround(ctx context.Context, worker string, settlements []drainer.Settlement) ([]int, error) {
	reply, err := s.turn(ctx, worker, drainer.Turn{Settle: settlements})
	if !isDataError(err) {
		return reply.Refused, err
	}
	if len(settlements) == 1 {
		reply, err = s.turn(ctx, worker, drainer.Turn{Settle: []drainer.Settlement{withoutBody(settlements[0])}})
		return reply.Refused, err
	}
	middle := len(settlements) / 2
	first, err := s.settleAround(ctx, worker, settlements[:middle])
	if err != nil {
		return nil, err
	}
	second, err := s.settleAround(ctx, worker, settlements[middle:])
	for _, refused := range second {
		first = append(first, middle+refused)
	}
	return first, err
}

// isDataError recognises the classes 22, "data exception", and 54, "program
// limit exceeded": text that jsonb or UTF-8 cannot hold, or too much of it.
func isDataError(err error) bool {
	var refusal *pgconn.PgError
	return errors.As(err, &refusal) && (strings.HasPrefix(refusal.Code, "22") || strings.HasPrefix(refusal.Code, "54"))
}

func withoutBody(s drainer.Settlement) drainer.Settlement {
	s.Result.Response, s.Result.ResponseHeaders, s.Result.ProviderRef, s.Result.Problem = nil, nil, "", nil
	s.Result.ErrorClass = "unstorable_response"
	return s
}
