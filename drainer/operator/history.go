package operator

import (
	"context"
	"fmt"
	"time"
)

// History is a stretch of the database's history: the newest one is in force.
type History struct {
	History          int        `json:"history"`
	SystemIdentifier *int64     `json:"system_identifier"` // null where pg_control_system is not granted
	Timeline         *int       `json:"timeline"`          // null where the server hides it
	LSN              *string    `json:"lsn"`               // at the newest heartbeat
	BeganAt          time.Time  `json:"began_at"`
	SeenAt           time.Time  `json:"seen_at"`
	Change           *string    `json:"change"`  // how it differs from the one before; null: it is the first
	Awaited          int        `json:"awaited"` // workers that have yet to look whether their commits are there
	Lost             bool       `json:"lost"`    // a worker misses commits
	AcceptedBy       *string    `json:"accepted_by"`
	AcceptedAt       *time.Time `json:"accepted_at"`
	Reason           *string    `json:"reason"`
}

// Histories lists them, the newest first.
func (c *Console) Histories(ctx context.Context) ([]History, error) {
	return collect[History](ctx, c, `SELECT id, system_identifier, timeline, lsn::text, began_at, seen_at, change,
		pg_catalog.cardinality(awaited), lost, accepted_by, accepted_at, reason FROM outbox.history ORDER BY id DESC LIMIT 100`)
}

// AcceptHistory lets what repeats its effect be sent again, after commits may have been lost. What was
// due until then is in doubt, unless nothing was lost. It reports false if nothing waited for it.
func (c *Console) AcceptHistory(ctx context.Context, history int, lossless bool, by Signature) (accepted bool, err error) {
	if err := by.Validate(); err != nil {
		return false, err
	}
	err = c.conn.QueryRow(ctx, `SELECT outbox.accept_history($1::int, $2::boolean, $3::text, $4::text)`, history, lossless, by.name(), by.Reason).Scan(&accepted)
	if err != nil {
		return false, fmt.Errorf("accept the database's history: %w", err)
	}
	return accepted, nil
}
