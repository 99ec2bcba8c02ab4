package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
)

var (
	//go:embed sql/doubted.sql
	doubtedSQL string
	//go:embed sql/late.sql
	lateSQL string
	//go:embed sql/astray.sql
	astraySQL string
)

// recordLate keeps the proof of effects whose settlement was refused. After an
// error the lane settles again, is refused again, and goes on from here.
func (s *Store) recordLate(ctx context.Context, worker string, settled []drainer.Settlement, refused []int) error {
	late, err := s.doubted(ctx, provenLate(settled, refused))
	if err != nil {
		return fmt.Errorf("look for late effects: %w", err)
	}
	for _, effect := range late {
		if err := s.recordEffect(ctx, worker, effect); err != nil {
			return fmt.Errorf("record a late effect: %w", err)
		}
	}
	return nil
}

// provenLate are the refused outcomes that prove an effect. What an undo came to
// is told to the step that it undoes.
func provenLate(settled []drainer.Settlement, refused []int) []drainer.Settlement {
	var proven []drainer.Settlement
	for _, i := range refused {
		if settled[i].Result.Outcome == dispatch.Completed && settled[i].Row.Undoes == nil {
			proven = append(proven, settled[i])
		}
	}
	return proven
}

// doubted leaves out what is on record: most often all of it, because the reply
// to its settlement was lost.
func (s *Store) doubted(ctx context.Context, proven []drainer.Settlement) ([]drainer.Settlement, error) {
	if len(proven) == 0 {
		return nil, nil
	}
	intents := make([]int64, len(proven))
	for i := range proven {
		intents[i] = proven[i].Row.IntentID
	}
	rows, _ := s.turns.Query(ctx, doubtedSQL, intents) // CollectRows returns the error too
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (drainer.Settlement, error) {
		i, err := pgx.RowTo[int](row)
		return proven[i], err
	})
}

func (s *Store) recordEffect(ctx context.Context, worker string, late drainer.Settlement) error {
	err := s.appendEffect(ctx, worker, late)
	if isDataError(err) {
		err = s.appendEffect(ctx, worker, withoutBody(late))
	}
	return err
}

// appendEffect holds the intent alone first, as operators and passes of a saga
// hold theirs: whoever was quicker has committed, and each statement from there
// on sees what came of that. A row that is claimed again is left to its new
// worker.
func (s *Store) appendEffect(ctx context.Context, worker string, late drainer.Settlement) error {
	return pgx.BeginTxFunc(ctx, s.turns, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var held bool
		err := tx.QueryRow(ctx, `SELECT outbox.hold_alone($1)`, late.Row.IntentID).Scan(&held)
		if err != nil || !held { // it has been forgotten
			return err
		}
		waited, err := tx.Exec(ctx, `DELETE FROM outbox.queue WHERE intent_id = $1`, late.Row.IntentID)
		if err != nil {
			return err
		}
		var appended bool
		err = tx.QueryRow(ctx, lateSQL, append(evidence(worker, late), waited.RowsAffected() > 0)...).Scan(&appended)
		if err != nil || !appended || !late.Acts {
			return err
		}
		_, err = tx.Exec(ctx, astraySQL, late.Row.IntentID)
		return err
	})
}

// evidence is passed in the order of late.sql.
func evidence(worker string, late drainer.Settlement) []any {
	result := late.Result
	return []any{
		worker, late.Row.IntentID, time.Since(late.StartedAt).Seconds(),
		orNull(int32(result.HTTPStatus)), orNull(result.ProviderRef), orNull(string(result.Response)), orNull(late.Row.Via),
	}
}

// orNull leaves out what is the type's zero.
func orNull[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}
