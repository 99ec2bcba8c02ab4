package operator

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/jackc/pgx/v5"
)

//go:embed sql/select.sql
var selectSQL string

// Selection names the intents of a bulk change; what is empty does not narrow
// it, but Statuses and Limit must be there.
type Selection struct {
	Statuses  []string
	Provider  string
	Run       string
	OlderThan time.Duration // since they were enqueued
	Limit     int
}

// MaxSelection is the highest limit of a selection.
const MaxSelection = 10_000

// Select finds intents, the oldest first, and reports whether there are more
// than the limit. It finds none that are completed or in progress, nor what a
// saga that ended as compensated or resolved has settled.
func (c *Console) Select(ctx context.Context, s Selection) (intents []int64, more bool, err error) {
	// CollectRows returns the error too.
	rows, _ := c.conn.Query(ctx, selectSQL, s.Statuses, s.Provider, s.Run, s.OlderThan.Seconds(), s.Limit+1)
	if intents, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		return nil, false, fmt.Errorf("select intents: %w", err)
	}
	return intents[:min(len(intents), s.Limit)], len(intents) > s.Limit, nil
}

// Find returns the id of the intent that the four-tuple is the key of.
func (c *Console) Find(ctx context.Context, t dispatch.Tuple) (int64, error) {
	var intent int64
	err := c.conn.QueryRow(ctx, `SELECT id FROM outbox.intent
		WHERE (agent_run_id, step_id, tool_name, business_scope) = ($1, $2, $3, $4)`,
		t.AgentRunID, t.StepID, t.ToolName, t.BusinessScope).Scan(&intent)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("find intent: %w", err)
	}
	return intent, nil
}

// RunOf returns the agent run that an intent, or an undo, is a step of.
func (c *Console) RunOf(ctx context.Context, intentID int64) (string, error) {
	var agentRunID string
	err := c.conn.QueryRow(ctx, `SELECT agent_run_id FROM outbox.intent WHERE id = $1`, intentID).Scan(&agentRunID)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", ErrNotFound
	}
	if err != nil {
		return "", fmt.Errorf("find the intent's run: %w", err)
	}
	return agentRunID, nil
}
