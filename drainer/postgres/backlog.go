package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/drainer"
	"github.com/jackc/pgx/v5"
)

var (
	//go:embed sql/backlog.sql
	backlogSQL string
	//go:embed sql/duplicates.sql
	duplicatesSQL string
	//go:embed sql/collisions.sql
	collisionsSQL string
)

// windowLag is how long a duplicate's transaction may take to commit after it
// was seen, and still be counted.
const windowLag = 5 * time.Second

// Backlog samples every provider that is configured anywhere or has rows.
func (s *Store) Backlog(ctx context.Context, since time.Time) (drainer.Backlog, error) {
	var backlog drainer.Backlog
	err := pgx.BeginTxFunc(ctx, s.control, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		if err = tx.QueryRow(ctx, `SELECT now() - make_interval(secs => $1::float8)`, windowLag.Seconds()).Scan(&backlog.Until); err != nil {
			return err
		}
		if since.IsZero() {
			since = backlog.Until
		}
		duplicates, err := duplicatesByProvider(ctx, tx, since, backlog.Until)
		if err != nil {
			return err
		}
		if backlog.Providers, err = providerBacklogs(ctx, tx, duplicates); err != nil {
			return err
		}
		return tx.QueryRow(ctx, collisionsSQL).Scan(&backlog.Collisions.Total, &backlog.Collisions.LastProvider)
	})
	if err != nil {
		return drainer.Backlog{}, fmt.Errorf("sample the backlog: %w", err)
	}
	return backlog, nil
}

func providerBacklogs(ctx context.Context, tx pgx.Tx, duplicates map[string]int64) ([]drainer.ProviderBacklog, error) {
	rows, err := tx.Query(ctx, backlogSQL, drainer.BacklogLimit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (drainer.ProviderBacklog, error) {
		var b drainer.ProviderBacklog
		var dueAge, inProgressAge float64
		err := row.Scan(&b.Provider, &b.Pending, &b.Due, &b.InProgress, &dueAge, &inProgressAge)
		b.OldestDueAge, b.OldestInProgressAge = seconds(&dueAge), seconds(&inProgressAge)
		b.Duplicates = duplicates[b.Provider]
		return b, err
	})
}

func duplicatesByProvider(ctx context.Context, tx pgx.Tx, after, until time.Time) (map[string]int64, error) {
	rows, err := tx.Query(ctx, duplicatesSQL, after, until)
	if err != nil {
		return nil, err
	}
	duplicates := map[string]int64{}
	var provider string
	var count int64
	_, err = pgx.ForEachRow(rows, []any{&provider, &count}, func() error {
		duplicates[provider] = count
		return nil
	})
	return duplicates, err
}
