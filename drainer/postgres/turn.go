package postgres

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

var (
	//go:embed sql/settle.sql
	settleSQL string
	//go:embed sql/finish.sql
	finishSQL string
	//go:embed sql/idle.sql
	idleSQL string
	//go:embed sql/claim.sql
	claimSQL string
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

// recordLate settles once more what was refused although it had its effect. Who
// waited for a reaper, or an operator, sees what that one wrote only in a
// statement of its own; without it the proof would be lost.
func (s *Store) recordLate(ctx context.Context, worker string, settled []drainer.Settlement, refused []int) error {
	var late []drainer.Settlement
	for _, i := range refused {
		if settled[i].Result.Outcome == dispatch.Completed {
			late = append(late, settled[i])
		}
	}
	if len(late) == 0 {
		return nil
	}
	_, err := s.settleAround(ctx, worker, late)
	return err
}

func (s *Store) turnAround(ctx context.Context, worker string, turn drainer.Turn) (drainer.TurnReply, error) {
	refused, err := s.settleAround(ctx, worker, turn.Settle)
	if err != nil {
		return drainer.TurnReply{}, err
	}
	reply, err := s.turn(ctx, worker, drainer.Turn{Finish: turn.Finish, Claims: turn.Claims})
	reply.Refused = refused
	return reply, err
}

func (s *Store) turn(ctx context.Context, worker string, turn drainer.Turn) (drainer.TurnReply, error) {
	reply := drainer.TurnReply{Claimed: make([]drainer.ClaimReply, len(turn.Claims))}
	var batch pgx.Batch
	queueSettle(&batch, worker, turn.Settle, &reply.Refused)
	queueFinish(&batch, worker, turn.Finish)
	queueBreakers(&batch, worker, turn.Settle)
	queueIdle(&batch, turn.Claims)
	for i, claim := range turn.Claims {
		queueClaim(&batch, worker, claim, &reply.Claimed[i])
	}
	if err := s.turns.SendBatch(ctx, &batch).Close(); err != nil {
		return drainer.TurnReply{}, fmt.Errorf("turn: %w", err)
	}
	return reply, nil
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

func queueClaim(batch *pgx.Batch, worker string, claim drainer.Claim, reply *drainer.ClaimReply) {
	if claim.Limit == 0 {
		return
	}
	after := pgtype.Timestamptz{Time: claim.After.NextAttemptAt, Valid: true}
	if claim.After.NextAttemptAt.IsZero() {
		after.InfinityModifier = pgtype.NegativeInfinity
	}
	batch.Queue(claimSQL, worker, claim.Provider, claim.Limit, after, claim.After.IntentID,
		claim.Server, claim.Fallback, claim.ProbeFor.Seconds(),
	).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			row, next, err := scanClaimed(rows)
			if err != nil {
				return fmt.Errorf("claimed row: %w", err)
			}
			reply.Found, reply.Next = reply.Found+1, next
			if row.ClaimID == 0 {
				continue
			}
			row.Probe = claim.ProbeFor > 0
			reply.Rows = append(reply.Rows, row)
		}
		return rows.Err()
	})
}

func scanClaimed(rows pgx.Rows) (*drainer.Row, drainer.Cursor, error) {
	row := &drainer.Row{ClaimedAt: time.Now()}
	var sinceFirst *float64
	var sinceEnqueue, sinceDue float64
	var payload, headers []byte
	var reference *string
	var due time.Time
	err := rows.Scan(&row.ClaimID, &row.IntentID, &row.Attempt, &row.Tries, &row.FirstAttemptAt,
		&sinceFirst, &sinceEnqueue, &sinceDue, &row.MaybeApplied, &row.Lookup, &row.Closed, &row.InSaga, &row.Via, &row.Undoes,
		&row.Tuple.AgentRunID, &row.Tuple.StepID, &row.Tuple.ToolName, &row.Tuple.BusinessScope,
		&payload, &headers, &reference, &due)
	if reference != nil {
		row.ProviderRef = *reference
	}
	row.SinceFirstSend = seconds(sinceFirst)
	row.SinceEnqueue, row.SinceDue = seconds(&sinceEnqueue), seconds(&sinceDue)
	row.Payload = payload
	row.Headers = textValues(headers)
	return row, drainer.Cursor{NextAttemptAt: due, IntentID: row.IntentID}, err
}

func seconds(s *float64) time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(*s * float64(time.Second))
}

// textValues keeps what can be a header; an agent's mistake in its headers is
// no reason to hold its intent up.
func textValues(headers []byte) map[string]string {
	if headers == nil {
		return nil
	}
	var values map[string]any
	if json.Unmarshal(headers, &values) != nil {
		return nil
	}
	texts := make(map[string]string, len(values))
	for name, value := range values {
		if text, is := value.(string); is {
			texts[name] = text
		}
	}
	return texts
}
