package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Querier is a pool or a connection of pgx.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func status(ctx context.Context, db Querier) ([]Migration, error) {
	outbox, err := outboxMigrations()
	if err != nil {
		return nil, err
	}
	river, err := riverMigrations()
	if err != nil {
		return nil, err
	}
	if err := markApplied(ctx, db, outbox, outboxVersions); err != nil {
		return nil, err
	}
	if err := markApplied(ctx, db, river, riverVersions); err != nil {
		return nil, err
	}
	return slices.Concat(outbox, river), nil
}

const (
	outboxVersions = "SELECT version_id FROM outbox.goose_db_version WHERE is_applied"
	riverVersions  = "SELECT version FROM outbox.river_migration WHERE line = 'main'"
)

func markApplied(ctx context.Context, db Querier, set []Migration, query string) error {
	versions, err := appliedVersions(ctx, db, query)
	if err != nil {
		return err
	}
	for i := range set {
		set[i].Applied = slices.Contains(versions, set[i].Version)
	}
	return nil
}

// appliedVersions is empty where there is no such table yet.
func appliedVersions(ctx context.Context, db Querier, query string) ([]int64, error) {
	rows, _ := db.Query(ctx, query) // CollectRows returns the error too
	versions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil && !isSQLState(err, undefinedTable, undefinedColumn) {
		return nil, fmt.Errorf("reading the schema's version: %w", err)
	}
	return versions, nil
}

// SQLSTATE codes, PostgreSQL documentation, appendix A.
const (
	undefinedTable   = "42P01"
	undefinedColumn  = "42703" // River's table before it knew of lines
	undefinedObject  = "42704"
	lockNotAvailable = "55P03"
)

func isSQLState(err error, codes ...string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && slices.Contains(codes, pgErr.Code)
}
