package pgpool_test

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

func TestASessionIsPreparedForADaemonThatVanishes(t *testing.T) {
	t.Parallel()
	pool, err := pgpool.Open(t.Context(), drainertest.Database(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for setting, want := range map[string]string{
		"default_transaction_isolation":       "read committed",
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

func TestAConnectionThatOnlyReadsIsNotKept(t *testing.T) {
	t.Parallel()
	pool, err := pgpool.Open(t.Context(), drainertest.Database(t), 1)
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

// Whoever waits for the only connection can give up; the pool itself must, too.
func TestAConnectionThatFallsSilentWhileItIsPreparedGivesItsPlaceUp(t *testing.T) {
	t.Parallel()
	pool, err := pgpool.Open(t.Context(), drainertest.Database(t), 1, `SELECT pg_sleep(3600)`)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if conn, err := pool.Acquire(t.Context()); err == nil || !strings.Contains(err.Error(), "prepare the database session") {
		t.Errorf("got %v, %v, want that the session could not be prepared", conn, err)
	}
}
