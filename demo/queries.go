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
	err = pool.QueryRow(ctx, progressSQL).Scan(&p.Enqueued, &p.Settled, &p.InProgress, &p.Retries, &p.Recovered,
		&p.Trips.Paid, &p.Trips.GoingBack, &p.Trips.Undone, &p.Trips.Stuck)
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
func (s *stage) collect(ctx context.Context) (facts, error) {
	if err := s.provider.finish(ctx); err != nil {
		return facts{}, err
	}
	f, err := readOutbox(ctx, s.database.pool)
	if err != nil {
		return facts{}, err
	}
	ledger, err := dispatchtest.ReadLedger(s.provider.ledgerPath)
	if err != nil {
		return facts{}, err
	}
	f.wanted, f.trips = s.wanted(), trips()
	f.ledger, f.effects = ledger.Audit(), ledger.Effects()
	f.pages = s.pager.received()
	return f, nil
}

func readOutbox(ctx context.Context, pool *pgxpool.Pool) (f facts, err error) {
	if f.intents, err = readAll[intent](ctx, pool, intentsSQL); err != nil {
		return f, fmt.Errorf("reading the intents: %w", err)
	}
	if f.sagas, err = readAll[saga](ctx, pool, `SELECT agent_run_id, state FROM outbox.saga`); err != nil {
		return f, fmt.Errorf("reading the sagas: %w", err)
	}
	if f.incidents, err = readAll[page](ctx, pool, `SELECT kind, intent_id FROM outbox.incident`); err != nil {
		return f, fmt.Errorf("reading the incidents: %w", err)
	}
	all, err := readAll[counts](ctx, pool, countsSQL)
	if err != nil {
		return f, fmt.Errorf("reading the attempts: %w", err)
	}
	f.counts = all[0]
	return f, nil
}

// readAll reads rows whose columns are T's fields, in their order.
func readAll[T any](ctx context.Context, pool *pgxpool.Pool, sql string) ([]T, error) {
	rows, err := pool.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}
