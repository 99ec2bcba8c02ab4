// Package producers enqueues from Go with nothing but pgx: copy it.
package producers

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// EnqueueStep returns these for what outbox.enqueue refuses.
var (
	ErrKeyTaken  = errors.New("this step stands for another payload already")
	ErrRunClosed = errors.New("the run is rolled back, or was cancelled")
)

// EnqueueStep commits an intent with tx. created is false for one that was there already.
func EnqueueStep(ctx context.Context, tx pgx.Tx, run, step, tool, scope string, payload any) (intentID int64, created bool, err error) {
	err = tx.QueryRow(ctx, `SELECT intent_id, created FROM outbox.enqueue($1, $2, $3, $4, $5)`,
		run, step, tool, scope, payload).Scan(&intentID, &created)
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		switch refused.Code {
		case "OB001":
			err = errors.Join(ErrKeyTaken, err)
		case "OB002":
			err = errors.Join(ErrRunClosed, err)
		}
	}
	return intentID, created, err
}
