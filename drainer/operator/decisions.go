package operator

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

var (
	//go:embed sql/settle.sql
	settleSQL string
	//go:embed sql/requeue.sql
	requeueSQL string
)

// decisions are the changes that one action makes, in the order of the
// intents' ids. One action either settles intents or requeues them.
type decisions []decision

type decision struct {
	standing standing
	change   change
}

// carryOut returns the intents that changed: those that still stood as they
// did when it was decided.
func (d decisions) carryOut(ctx context.Context, tx pgx.Tx, by Signature) ([]int64, error) {
	if len(d) == 0 {
		return nil, nil
	}
	send := d.settle
	if d[0].change.requeue != nil {
		send = d.requeue
	}
	// CollectRows returns the error too.
	rows, _ := send(ctx, tx, by)
	won, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("append to the history: %w", err)
	}
	return won, nil
}

func (d decisions) settle(ctx context.Context, tx pgx.Tx, by Signature) (pgx.Rows, error) {
	intents, attempts := d.fences()
	queued := make([]bool, len(d))
	for i := range d {
		queued[i] = d[i].standing.Queued
	}
	same := d[0].change
	return tx.Query(ctx, settleSQL, by.worker(), same.outcome, same.status, same.providerRef, by.Reason, intents, attempts, queued)
}

func (d decisions) requeue(ctx context.Context, tx pgx.Tx, by Signature) (pgx.Rows, error) {
	intents, attempts := d.fences()
	outcomes := make([]string, len(d))
	firstAttempts := make([]*time.Time, len(d))
	maybeApplied := make([]bool, len(d))
	vias, lookups := make([]string, len(d)), make([]bool, len(d))
	for i := range d {
		back := d[i].change.requeue
		outcomes[i], firstAttempts[i], maybeApplied[i], vias[i] = d[i].change.outcome, back.firstAttemptAt, back.maybeApplied, back.via
		lookups[i] = back.lookup
	}
	return tx.Query(ctx, requeueSQL, by.worker(), by.Reason, intents, attempts, outcomes, firstAttempts, maybeApplied, vias, lookups)
}

// fences are the rows as they stood: a change is made only after just that
// attempt.
func (d decisions) fences() (intents []int64, attempts []int32) {
	for i := range d {
		intents = append(intents, d[i].standing.IntentID)
		attempts = append(attempts, int32(d[i].standing.Attempt))
	}
	return intents, attempts
}
