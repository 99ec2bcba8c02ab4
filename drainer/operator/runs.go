package operator

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"
)

var (
	//go:embed sql/cancel_run.sql
	cancelRunSQL string
	//go:embed sql/stop_waiting.sql
	stopWaitingSQL string
	//go:embed sql/run_standing.sql
	runStandingSQL string
)

// ClosedRun is where a run that takes no further step stands.
type ClosedRun struct {
	AgentRunID string `json:"agent_run_id"`
	State      string `json:"state"`       // cancelled, or where its saga is
	Cancelled  int    `json:"cancelled"`   // steps that never had an effect
	InProgress int    `json:"in_progress"` // they end, and are recorded
	Unsettled  int    `json:"unsettled"`   // may have been applied: looked up and not sent again
	Completed  int    `json:"completed"`
}

// CancelRun closes a run for good: it takes no further step, what waits is
// taken out of the queue, and what is in flight ends. With compensate, what it
// completed is undone after that, as if a step had failed.
//
// The first commit closes it for every worker. If a later one fails, the lanes
// stop what waits.
func (c *Console) CancelRun(ctx context.Context, agentRunID string, compensate bool, by Signature) (ClosedRun, error) {
	sql := cancelRunSQL
	if compensate {
		sql = compensateSQL
	}
	if err := c.changeSaga(ctx, agentRunID, by, sql, "its run takes no further step already; see drainer sagas show", noteCancel); err != nil {
		return ClosedRun{}, err
	}
	if err := c.stopWaiting(ctx, agentRunID, by); err != nil {
		return ClosedRun{}, err
	}
	run := ClosedRun{AgentRunID: agentRunID}
	err := c.conn.QueryRow(ctx, runStandingSQL, agentRunID).Scan(&run.State, &run.Cancelled, &run.InProgress, &run.Unsettled, &run.Completed)
	if err != nil {
		return run, fmt.Errorf("the run is closed, but read where it stands: %w", err)
	}
	return run, nil
}

func noteCancel(ctx context.Context, tx pgx.Tx, agentRunID string, by Signature) error {
	_, err := tx.Exec(ctx, `INSERT INTO outbox.operation (operator, action, agent_run_id, reason) VALUES ($1, 'cancel_run', $2, $3)`,
		by.worker(), agentRunID, by.Reason)
	return err
}

// stopWaiting locks few rows at a time, and waits for none.
func (c *Console) stopWaiting(ctx context.Context, agentRunID string, by Signature) error {
	for {
		var stopped int64
		err := pgx.BeginTxFunc(ctx, c.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, stopWaitingSQL, agentRunID, by.worker(), by.Reason, batchSize)
			stopped = tag.RowsAffected()
			return err
		})
		switch {
		case err != nil:
			return fmt.Errorf("the run is closed, but take what waits out of the queue: %w", err)
		case stopped == 0:
			return nil
		}
	}
}
