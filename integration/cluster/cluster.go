// Package cluster runs Postgres servers of a test's own, for what must not be
// done to a server that others use: to crash it, to fill it up, to promote its
// standby, to move its clock.
package cluster

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// quick leaves out what only a crash of the machine would need. Every commit
// survives a crash of the server.
var quick = throwaway.WithSettings(map[string]string{"fsync": "off", "full_page_writes": "off"})

// Start runs a server with the schema until the test ends.
func Start(t testing.TB, options ...throwaway.Option) *throwaway.Server {
	t.Helper()
	server := start(t, options...)
	if _, err := migrations.Up(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	return server
}

// Standby runs one that follows the primary.
func Standby(t testing.TB, primary *throwaway.Server) *throwaway.Server {
	t.Helper()
	return start(t, throwaway.Following(primary))
}

func start(t testing.TB, options ...throwaway.Option) *throwaway.Server {
	t.Helper()
	server, err := throwaway.Start(t.Context(), append([]throwaway.Option{quick}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// AwaitCaughtUp returns once the standby knows every commit of its primary.
func AwaitCaughtUp(t testing.TB, primary, standby *throwaway.Server) {
	t.Helper()
	written := Ask[string](t, primary, `SELECT pg_current_wal_lsn()::text`)
	drainertest.Eventually(t, "the standby has caught up", func() bool {
		return Ask[bool](t, standby, `SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, written)
	})
}

// Restart starts a server that was killed.
func Restart(t testing.TB, server *throwaway.Server) {
	t.Helper()
	if err := server.Restart(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// Kill stops a server at once, as a crash does.
func Kill(t testing.TB, server *throwaway.Server) {
	t.Helper()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
}

// Ask is the first column of the first row of a query, made on a connection of
// its own.
func Ask[V any](t testing.TB, server *throwaway.Server, sql string, args ...any) (value V) {
	t.Helper()
	conn := Connect(t, server)
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// Exec runs statements on a connection of its own.
func Exec(t testing.TB, server *throwaway.Server, sql string) {
	t.Helper()
	conn := Connect(t, server)
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Connect is somebody else's session, for the caller to close.
func Connect(t testing.TB, server *throwaway.Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
