package demo

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

var (
	//go:embed sql/progress.sql
	progressSQL string
	//go:embed sql/held.sql
	heldSQL string
	//go:embed sql/intents.sql
	intentsSQL string
	//go:embed sql/counts.sql
	countsSQL string
)

func readProgress(ctx context.Context, pool *pgxpool.Pool) (p Progress, err error) {
	err = pool.QueryRow(ctx, progressSQL).Scan(&p.Enqueued, &p.Settled, &p.InProgress, &p.Retries, &p.Recovered)
	if err != nil {
		return p, fmt.Errorf("reading the progress: %w", err)
	}
	return p, nil
}

// heldBy counts the intents that a worker claimed and has not settled.
func heldBy(ctx context.Context, pool *pgxpool.Pool, worker string) (held int, err error) {
	if err = pool.QueryRow(ctx, heldSQL, worker).Scan(&held); err != nil {
		return 0, fmt.Errorf("reading what a drainer holds: %w", err)
	}
	return held, nil
}

// workers lists those that are not known yet.
func workers(ctx context.Context, pool *pgxpool.Pool, known []string) ([]string, error) {
	rows, err := pool.Query(ctx, `SELECT worker_id::text FROM outbox.worker
		WHERE worker_id::text <> ALL (coalesce($1::text[], '{}'))`, known)
	if err != nil {
		return nil, fmt.Errorf("reading the workers: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// collect reads the outbox, and the provider's ledger from its file.
func (s *stage) collect(ctx context.Context) (facts facts, err error) {
	if err := s.provider.finish(ctx); err != nil {
		return facts, err
	}
	rows, err := s.database.pool.Query(ctx, intentsSQL)
	if err != nil {
		return facts, fmt.Errorf("reading the intents: %w", err)
	}
	if facts.intents, err = pgx.CollectRows(rows, pgx.RowToStructByPos[intent]); err != nil {
		return facts, fmt.Errorf("reading the intents: %w", err)
	}
	if facts.counts, err = readCounts(ctx, s.database.pool); err != nil {
		return facts, err
	}
	ledger, err := dispatchtest.ReadLedger(s.provider.ledgerPath)
	if err != nil {
		return facts, err
	}
	facts.wanted, facts.ledger = s.Intents, ledger.Audit()
	return facts, nil
}

func readCounts(ctx context.Context, pool *pgxpool.Pool) (counts, error) {
	rows, err := pool.Query(ctx, countsSQL)
	if err != nil {
		return counts{}, fmt.Errorf("reading the attempts: %w", err)
	}
	all, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[counts])
	if err != nil {
		return counts{}, fmt.Errorf("reading the attempts: %w", err)
	}
	return all, nil
}
