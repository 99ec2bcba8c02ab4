package compensations

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

var (
	//go:embed sql/halt.sql
	haltSQL string
	//go:embed sql/steps.sql
	stepsSQL string
	//go:embed sql/undo.sql
	undoSQL string
	//go:embed sql/mark.sql
	markSQL string
	//go:embed sql/fail.sql
	failSQL string
)

// run is an agent run whose saga this transaction has locked.
type run struct {
	tx pgx.Tx
	id string
}

// lock takes the saga for this transaction alone. It reports false for a run
// that has none under way.
func lock(ctx context.Context, tx pgx.Tx, agentRunID string) (run, bool, error) {
	var state string
	err := tx.QueryRow(ctx, `SELECT state FROM outbox.saga WHERE agent_run_id = $1 FOR UPDATE`, agentRunID).Scan(&state)
	if errors.Is(err, pgx.ErrNoRows) {
		return run{}, false, nil
	}
	if err != nil {
		return run{}, false, fmt.Errorf("lock the saga: %w", err)
	}
	return run{tx, agentRunID}, state == "begun", nil
}

// hold keeps the steps from being pruned, and late evidence of an effect from
// coming between what is read of them and what follows from it.
func (r run) hold(ctx context.Context) error {
	return r.execute(ctx, "hold the steps", `SELECT outbox.hold(ARRAY(SELECT id FROM outbox.intent WHERE agent_run_id = $1))`, r.id)
}

func (r run) halt(ctx context.Context) error { return r.execute(ctx, "stop what waits", haltSQL, r.id) }

func (r run) steps(ctx context.Context) ([]Step, error) {
	rows, _ := r.tx.Query(ctx, stepsSQL, r.id) // CollectRows returns the error too
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Step, error) {
		var step Step
		var age float64
		var response *json.RawMessage
		err := row.Scan(&step.IntentID, &step.Tuple.AgentRunID, &step.Tuple.StepID, &step.Tuple.ToolName, &step.Tuple.BusinessScope,
			&step.Payload, &response, &step.ProviderRef, &step.ServedBy, &step.Status, &age, &step.Undo, &step.UndoEnded)
		step.Age = time.Duration(age * float64(time.Second))
		if response != nil {
			step.Response = *response
		}
		return step, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the run's steps: %w", err)
	}
	return steps, nil
}

func (r run) undo(ctx context.Context, decided Decision) error {
	return r.execute(ctx, "enqueue an undo", undoSQL, decided.Step.IntentID, decided.undo, decided.payload)
}

func (r run) mark(ctx context.Context, step Step) error {
	return r.execute(ctx, "mark a step as undone", markSQL, step.IntentID)
}

func (r run) fail(ctx context.Context, step Step, why failure) error {
	return r.execute(ctx, "fail the saga", failSQL, step.IntentID, string(why), why.incident())
}

func (r run) finish(ctx context.Context) error {
	return r.execute(ctx, "finish the saga",
		`UPDATE outbox.saga SET state = 'compensated', ended_at = now() WHERE agent_run_id = $1`, r.id)
}

func (r run) execute(ctx context.Context, what, sql string, args ...any) error {
	if _, err := r.tx.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
