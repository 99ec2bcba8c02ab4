package drainertest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Connect returns a pool that is closed when the test has ended.
func Connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatalf("connecting to the test's database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Exec runs a statement that must succeed. Like the others it also works in a
// cleanup, when the test's context has ended.
func Exec(t testing.TB, db executor, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Value is the one column of the one row that a query must give.
func Value[V any](t testing.TB, db querier, sql string, args ...any) V {
	t.Helper()
	rows, _ := db.Query(context.Background(), sql, args...) // an error is in the rows, too
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[V])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// Column is the one column that a query must give.
func Column[V any](t testing.TB, db querier, sql string, args ...any) []V {
	t.Helper()
	rows, _ := db.Query(context.Background(), sql, args...) // an error is in the rows, too
	values, err := pgx.CollectRows(rows, pgx.RowTo[V])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}
