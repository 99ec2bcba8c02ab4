package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Overview is the state of the outbox at a glance.
type Overview struct {
	Providers  []ProviderOverview `json:"providers"`
	Workers    []Worker           `json:"workers"`
	Collisions int64              `json:"idempotency_key_collisions"` // must always be zero
	Attention
}

// Attention is what goes back or wants a human. Each stops counting at
// CountLimit.
type Attention struct {
	SagasBegun    int64 `json:"sagas_begun"`
	SagasFailed   int64 `json:"sagas_failed"`   // with an incident that is not resolved
	IncidentsOpen int64 `json:"incidents_open"` // that nobody has acknowledged
}

// ProviderOverview says whether a provider is sent to, and counts what is not
// settled. Pending and Due stop counting at CountLimit.
type ProviderOverview struct {
	Provider            string   `json:"provider"`
	Paused              bool     `json:"paused"`
	Breaker             *string  `json:"circuit_breaker"`                  // closed, open or half_open; nil: no worker ever had the provider in its configuration
	OpenForSeconds      *float64 `json:"circuit_breaker_open_for_seconds"` // until it is tried, or, half open, until another worker may try; nil unless it is open or half open
	Pending             int64    `json:"pending"`
	Due                 int64    `json:"due"`
	InProgress          int64    `json:"in_progress"`
	OldestDueAgeSeconds float64  `json:"oldest_due_age_seconds"`

	// Of the oldest claim. Far over the provider's timeout it belongs to a dead
	// worker, and nobody that lives has the provider in its configuration.
	OldestInProgressAgeSeconds float64 `json:"oldest_in_progress_age_seconds"`
}

// CountLimit bounds each count, so that asking stays cheap in an incident.
const CountLimit = 100_000

// Worker is a process that holds the right to claim.
type Worker struct {
	WorkerID  string    `json:"worker_id"`
	StartedAt time.Time `json:"started_at"`
	BeatAt    time.Time `json:"beat_at"`
}

// Overview reads providers that are configured somewhere or have rows waiting.
func (c *Console) Overview(ctx context.Context) (Overview, error) {
	var overview Overview
	var err error
	if overview.Providers, err = collect[ProviderOverview](ctx, c, providersSQL, CountLimit); err != nil {
		return overview, err
	}
	if overview.Workers, err = collect[Worker](ctx, c, `SELECT worker_id::text, started_at, beat_at FROM outbox.worker ORDER BY started_at`); err != nil {
		return overview, err
	}
	if err = c.conn.QueryRow(ctx, `SELECT last_value FROM outbox.collisions`).Scan(&overview.Collisions); err != nil {
		return overview, fmt.Errorf("count collisions: %w", err)
	}
	at := &overview.Attention
	if err = c.conn.QueryRow(ctx, attentionSQL, CountLimit).Scan(&at.SagasBegun, &at.SagasFailed, &at.IncidentsOpen); err != nil {
		return overview, fmt.Errorf("count sagas and incidents: %w", err)
	}
	return overview, nil
}

const providersSQL = `
	WITH RECURSIVE queued AS ( -- one index look a provider, however many rows it has
		(SELECT provider FROM outbox.queue ORDER BY provider LIMIT 1)
		UNION ALL
		SELECT (SELECT q.provider FROM outbox.queue q WHERE q.provider > queued.provider ORDER BY q.provider LIMIT 1)
		FROM queued WHERE provider IS NOT NULL)
	SELECT n.name, coalesce(p.paused, false),
		p.state, CASE WHEN p.state <> 'closed' THEN greatest(0, extract(epoch FROM p.open_until - now()))::float8 END,
		(SELECT count(*) FROM (SELECT FROM outbox.queue WHERE provider = n.name LIMIT $1) q),
		(SELECT count(*) FROM (SELECT FROM outbox.queue WHERE provider = n.name AND next_attempt_at <= now() LIMIT $1) q),
		(SELECT coalesce(sum(cardinality(intent_ids)), 0)::bigint FROM outbox.claim WHERE provider = n.name),
		coalesce((SELECT extract(epoch FROM now() - min(next_attempt_at)) FROM outbox.queue
			WHERE provider = n.name AND next_attempt_at <= now()), 0)::float8,
		coalesce((SELECT extract(epoch FROM now() - min(claimed_at)) FROM outbox.claim WHERE provider = n.name), 0)::float8
	FROM (SELECT name FROM outbox.provider UNION SELECT provider FROM queued WHERE provider IS NOT NULL) n
	LEFT JOIN outbox.provider p USING (name) ORDER BY n.name`

// A saga that failed is found by its incident: there are few, and most sagas
// ended well.
const attentionSQL = `
	SELECT (SELECT count(*) FROM (SELECT FROM outbox.saga WHERE state = 'begun' LIMIT $1) s),
		(SELECT count(DISTINCT agent_run_id) FROM (SELECT agent_run_id FROM outbox.incident i JOIN outbox.saga s USING (agent_run_id)
			WHERE i.resolved_at IS NULL AND s.state = 'compensation_failed' LIMIT $1) f),
		(SELECT count(*) FROM (SELECT FROM outbox.incident WHERE acknowledged_at IS NULL AND resolved_at IS NULL LIMIT $1) i)`

func collect[T any](ctx context.Context, c *Console, sql string, args ...any) ([]T, error) {
	// CollectRows returns the error too.
	rows, _ := c.conn.Query(ctx, sql, args...)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("read the overview: %w", err)
	}
	return all, nil
}
