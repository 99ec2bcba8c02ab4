package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/internal/failpoint"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainer"
)

var (
	//go:embed sql/orphaned.sql
	orphanedSQL string
	//go:embed sql/forgotten.sql
	forgottenSQL string
	//go:embed sql/unsettled.sql
	unsettledSQL string
)

// Reap settles what dead workers left, a few claims a transaction, until
// none is left that this caller can judge and no other reaper holds.
func (s *Store) Reap(ctx context.Context, providers []string, judge drainer.Judge) ([]drainer.Settlement, error) {
	var all []drainer.Settlement
	for last := int64(0); ; {
		claims, settled, err := s.takeBack(ctx, judge, orphanedSQL, providers, last)
		all = append(all, settled...)
		if err != nil || len(claims) == 0 {
			return all, err
		}
		last = claims[len(claims)-1].ID
	}
}

// Reclaim settles what the worker itself claimed on a provider and does not
// remember. Only the lane that claims there may call it.
func (s *Store) Reclaim(ctx context.Context, worker, provider, server string, remembered []int64, judge drainer.Judge) ([]drainer.Settlement, error) {
	if remembered == nil {
		remembered = []int64{} // NULL would make the comparison unknown
	}
	_, settled, err := s.takeBack(ctx, judge, forgottenSQL, worker, provider, remembered, server)
	return settled, err
}

type heldClaim struct {
	ID     int64
	Worker string
}

// takeBack locks claims, reads the rows of them that have no outcome, and
// settles what judge decides. Lock and read are two statements on purpose: the
// second needs a snapshot that is newer than the lock.
func (s *Store) takeBack(ctx context.Context, judge drainer.Judge, lockSQL string, args ...any) (claims []heldClaim, settled []drainer.Settlement, err error) {
	err = pgx.BeginTxFunc(ctx, s.control, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if claims, err = lockClaims(ctx, tx, lockSQL, args...); err != nil || len(claims) == 0 {
			return err
		}
		failpoint.ClaimsLocked.Hit()
		left, err := unsettledRows(ctx, tx, claims)
		if err != nil {
			return err
		}
		failpoint.ClaimsRead.Hit()
		settled, err = settleLeft(ctx, tx, claims, left, judge)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("take back claims: %w", err)
	}
	return claims, settled, nil
}

func lockClaims(ctx context.Context, tx pgx.Tx, lockSQL string, args ...any) ([]heldClaim, error) {
	rows, _ := tx.Query(ctx, lockSQL, args...) // CollectRows returns the error too
	return pgx.CollectRows(rows, pgx.RowToStructByPos[heldClaim])
}

func unsettledRows(ctx context.Context, tx pgx.Tx, claims []heldClaim) (map[int64][]*drainer.Row, error) {
	ids := make([]int64, len(claims))
	for i, claim := range claims {
		ids[i] = claim.ID
	}
	rows, _ := tx.Query(ctx, unsettledSQL, ids)
	left := map[int64][]*drainer.Row{}
	var row drainer.Row
	var sinceFirst, sinceClaim *float64
	_, err := pgx.ForEachRow(rows, []any{
		&row.ClaimID, &row.IntentID, &row.Attempt, &row.Tries, &row.FirstAttemptAt, &sinceFirst, &sinceClaim, &row.MaybeApplied, &row.Lookup, &row.Via, &row.Undoes,
		&row.Tuple.AgentRunID, &row.Tuple.StepID, &row.Tuple.ToolName, &row.Tuple.BusinessScope,
	}, func() error {
		found := row
		found.SinceFirstSend = seconds(sinceFirst)
		found.ClaimedAt = time.Now().Add(-seconds(sinceClaim))
		left[row.ClaimID] = append(left[row.ClaimID], &found)
		return nil
	})
	return left, err
}

// settleLeft goes claim by claim, because each is fenced by its own worker. A
// claim with a row that judge leaves alone stays for somebody else.
func settleLeft(ctx context.Context, tx pgx.Tx, claims []heldClaim, left map[int64][]*drainer.Row, judge drainer.Judge) ([]drainer.Settlement, error) {
	var all []drainer.Settlement
	var batch pgx.Batch
	for _, claim := range claims {
		var settlements []drainer.Settlement
		for _, row := range left[claim.ID] {
			if settlement, judged := judge(row); judged {
				settlements = append(settlements, settlement)
			}
		}
		var refused []int // none can be: the claim is locked and its rows had no outcome
		queueSettle(&batch, claim.Worker, settlements, false, &refused)
		queueBreakers(&batch, claim.Worker, settlements)
		if len(settlements) == len(left[claim.ID]) {
			queueFinish(&batch, claim.Worker, []int64{claim.ID})
		}
		all = append(all, settlements...)
	}
	return all, tx.SendBatch(ctx, &batch).Close()
}

func seconds(s *float64) time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(*s * float64(time.Second))
}
