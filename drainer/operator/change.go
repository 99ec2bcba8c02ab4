package operator

import (
	"context"
	_ "embed"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/standing.sql
var standingSQL string

// batchSize bounds how many intents are locked at once, and how much is lost
// to a connection that breaks.
const batchSize = 200

const refusedRace refusal = "somebody else, a worker or another operator, was quicker; look at it again"

// Preview says what an action would do to each of the intents that exist, in
// the order of their ids, and changes nothing.
func (c *Console) Preview(ctx context.Context, action Action, intents []int64) ([]Verdict, error) {
	var verdicts []Verdict
	for batch := range slices.Chunk(intents, batchSize) {
		standings, err := standingsOf(ctx, c.conn, batch)
		if err != nil {
			return verdicts, err
		}
		for _, s := range standings {
			planned, refused := action.judge(s)
			verdicts = append(verdicts, verdictOn(s, planned, refused))
		}
	}
	return verdicts, nil
}

// Change takes an action on the intents that exist, a bounded batch at a time,
// each in a transaction of its own. After an error the verdicts tell what was
// committed before it.
func (c *Console) Change(ctx context.Context, action Action, by Signature, intents []int64) ([]Verdict, error) {
	if err := by.Validate(); err != nil {
		return nil, err
	}
	var all []Verdict
	for batch := range slices.Chunk(intents, batchSize) {
		var verdicts []Verdict
		// The role's default could be stricter, and meeting a worker would then be an error.
		err := pgx.BeginTxFunc(ctx, c.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			verdicts, err = changeBatch(ctx, tx, action, by, batch)
			return err
		})
		if err != nil {
			return all, fmt.Errorf("change intents: %w", err)
		}
		all = append(all, verdicts...)
	}
	return all, nil
}

func changeBatch(ctx context.Context, tx pgx.Tx, action Action, by Signature, intents []int64) ([]Verdict, error) {
	held, err := hold(ctx, tx, intents)
	if err != nil {
		return nil, err
	}
	standings, err := standingsOf(ctx, tx, held)
	if err != nil {
		return nil, err
	}
	verdicts := make([]Verdict, len(standings))
	var allowed decisions
	for i, s := range standings {
		planned, refused := action.judge(s)
		verdicts[i] = verdictOn(s, planned, refused)
		if refused == "" {
			allowed = append(allowed, decision{s, planned})
		}
	}
	won, err := allowed.carryOut(ctx, tx, by)
	if err != nil {
		return nil, err
	}
	for i := range verdicts {
		if v := &verdicts[i]; v.Refused == "" && !slices.Contains(won, v.IntentID) {
			v.refuse(refusedRace)
		}
	}
	return verdicts, nil
}

// hold keeps intents from being pruned until the transaction ends, and returns
// those that were not before.
func hold(ctx context.Context, tx pgx.Tx, intents []int64) ([]int64, error) {
	// CollectRows returns the error too.
	rows, _ := tx.Query(ctx, `SELECT outbox.hold($1)`, intents)
	held, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("hold the intents: %w", err)
	}
	return held, nil
}

// querier is a connection, or a transaction on it.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func standingsOf(ctx context.Context, db querier, intents []int64) ([]standing, error) {
	rows, _ := db.Query(ctx, standingSQL, intents)
	standings, err := pgx.CollectRows(rows, pgx.RowToStructByPos[standing])
	if err != nil {
		return nil, fmt.Errorf("read where the intents stand: %w", err)
	}
	return standings, nil
}
