package migrations_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

func connect(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	return drainertest.Connect(t, url)
}

func newDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return connect(t, drainertest.Database(t))
}

func execute(t *testing.T, db executor, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func count(t *testing.T, pool *pgxpool.Pool, query string, args ...any) int {
	t.Helper()
	return drainertest.Value[int](t, pool, query, args...)
}

func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

func begin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// awaitBlocked waits until some statement of this database waits for a lock.
func awaitBlocked(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for count(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 0 {
		if t.Context().Err() != nil {
			t.Fatal("nothing ever waited")
		}
	}
}
