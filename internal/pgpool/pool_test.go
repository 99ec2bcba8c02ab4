package pgpool_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

func TestASessionIsPreparedForADaemonThatVanishes(t *testing.T) {
	t.Parallel()
	pool, err := pgpool.Open(t.Context(), pgpool.At(drainertest.Database(t)), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for setting, want := range map[string]string{
		"search_path":                         "pg_catalog, pg_temp",
		"default_transaction_isolation":       "read committed",
		"jit":                                 "off",
		"idle_in_transaction_session_timeout": "10s",
		"tcp_user_timeout":                    "10000",
		"tcp_keepalives_idle":                 "5",
		"tcp_keepalives_interval":             "2",
		"tcp_keepalives_count":                "3",
	} {
		var got string
		if err := pool.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q (%v), want %q", setting, got, err, want)
		}
	}
}

// In another encoding a payload has other bytes and its intent another key, or the row cannot be read.
func TestTextIsUTF8WhateverTheDatabaseSays(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	admin := drainertest.Connect(t, url)
	drainertest.Exec(t, admin, fmt.Sprintf("ALTER DATABASE %s SET client_encoding = 'LATIN1'", drainertest.Value[string](t, admin, "SELECT current_database()")))
	var refusals atomic.Int64
	for name, at := range map[string]string{"directly": url, "through a pooler": pgproxy.RefuseSettings(t, url, &refusals)} {
		pool, err := pgpool.Open(t.Context(), pgpool.At(at), 1)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if got := drainertest.Value[string](t, pool, `SELECT U&'B\00fcro \4e2d'`); got != "Büro 中" {
			t.Errorf("%s: read %q", name, got)
		}
	}
	if refusals.Load() == 0 {
		t.Error("the pooler refused no setting")
	}
}

func TestAConnectionThatOnlyReadsIsNotKept(t *testing.T) {
	t.Parallel()
	pool, err := pgpool.Open(t.Context(), pgpool.At(drainertest.Database(t)), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	const write = `UPDATE outbox.worker SET beat_at = now()`
	if _, err := pool.Exec(t.Context(), `SET default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), write); err == nil {
		t.Fatal("a transaction that only reads wrote")
	}
	if _, err := pool.Exec(t.Context(), write); err != nil {
		t.Errorf("the connection was kept: %v", err)
	}
}

// A SET would stay on the pooler's server connection, and would apply to the next client that gets it.
func TestNothingThatTheProgramSetsStaysOnAPooledConnection(t *testing.T) {
	t.Parallel()
	var refusals atomic.Int64
	through := pgproxy.RefuseSettings(t, drainertest.Database(t), &refusals)
	pool, err := pgpool.Open(t.Context(), pgpool.At(through), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	config, err := pgx.ParseConfig(through)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgpool.Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())

	fault.Injected(t, 84, int(refusals.Load()))

	const changed = `SELECT name FROM pg_settings WHERE source = 'session' ORDER BY name`
	if err := pgx.BeginTxFunc(t.Context(), pool, pgpool.Transaction, func(tx pgx.Tx) error {
		for setting, want := range map[string]string{
			"search_path":                         "pg_catalog, pg_temp",
			"transaction_isolation":               "read committed",
			"jit":                                 "off",
			"idle_in_transaction_session_timeout": "10s",
		} {
			if got := drainertest.Value[string](t, tx, "SELECT current_setting($1)", setting); got != want {
				t.Errorf("in a transaction %s is %q, want %q", setting, got, want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for name, db := range map[string]interface {
		Query(context.Context, string, ...any) (pgx.Rows, error)
	}{"the daemon's pool": pool, "the CLI": conn} {
		for _, left := range drainertest.Column[string](t, db, changed) {
			t.Errorf("%s leaves %s set on the pooler's connection", name, left)
		}
	}
}

func TestTheCommandLineLooksAtNoSchemaOfOthers(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(drainertest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgpool.Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if got := drainertest.Value[string](t, conn, "SHOW search_path"); got != "pg_catalog, pg_temp" {
		t.Errorf("the search_path is %q", got)
	}
}
