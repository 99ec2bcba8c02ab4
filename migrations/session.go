package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// lockTimeout bounds how long a migration waits for the lock of a table. While it
	// waits, statements of agents on that table wait behind it.
	lockTimeout = 5 * time.Second
	lockTries   = 5
	lockPause   = time.Second

	// lockWait is how long one migration waits for another to end.
	lockWait = 5 * time.Minute
)

// migrate runs change while no other migration of the database runs. It returns the migrations that change applied or
// undid, also after an error.
func migrate(ctx context.Context, databaseURL string, logins []BeforeConnect, change func(context.Context, *pgxpool.Pool, pgx.Tx) error) (changed []Migration, err error) {
	pool, err := connect(ctx, databaseURL, logins)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	lock, err := acquireLock(ctx, pool)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Rollback(context.WithoutCancel(ctx)) }()

	before, err := status(ctx, pool)
	if err != nil {
		return nil, err
	}
	changeErr := retryLocks(ctx, func() error { return change(ctx, pool, lock) })
	if changeErr == nil {
		changeErr = lock.Commit(ctx)
	}
	after, err := status(ctx, pool)
	return difference(before, after), errors.Join(changeErr, err)
}

// BeforeConnect is called before each connect. It may change the login.
type BeforeConnect = func(context.Context, *pgx.ConnConfig) error

func connect(ctx context.Context, databaseURL string, logins []BeforeConnect) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		// Only the cause is wrapped, because the whole error repeats the URL.
		return nil, fmt.Errorf("reading the database URL (postgres://user@host:5432/name): %w", errors.Unwrap(err))
	}
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	config.ConnConfig.RuntimeParams["search_path"] = "outbox, pg_temp" // goose looks for its table there
	config.ConnConfig.RuntimeParams["lock_timeout"] = fmt.Sprint(lockTimeout.Milliseconds())
	// Without this, the server would go on building an index after an interrupt, when the lock of migrations is free.
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: lockTimeout}
	}
	config.BeforeConnect = func(ctx context.Context, next *pgx.ConnConfig) error {
		for _, change := range logins {
			if err := change(ctx, next); err != nil {
				return err
			}
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the database: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connecting to the database: %w", err)
	}
	return pool, nil
}

// ensureLockTable creates the table that migrations lock. Other logins have no privilege on the table, so they cannot
// lock it. An advisory lock could be taken by any login. The statement refuses a schema of this name that
// belongs to another login, because code in it would run with the rights of the migrating login. It also
// refuses another encoding than UTF8, because payloads and responses are in any script, and a row that
// cannot be stored would never settle.
const ensureLockTable = `DO $$
DECLARE
  owner text := (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'outbox');
BEGIN
  IF owner IS NULL AND current_setting('server_encoding') <> 'UTF8' THEN
    RAISE EXCEPTION 'outbox: the encoding of this database is %, and drainer needs UTF8', current_setting('server_encoding')
      USING ERRCODE = 'feature_not_supported', HINT = 'Create a database with ENCODING ''UTF8'', and migrate that one.';
  ELSIF owner IS NULL THEN
    CREATE SCHEMA outbox;
  ELSIF owner <> current_user THEN
    RAISE EXCEPTION 'outbox: schema outbox belongs to %, and % is about to migrate it', owner, current_user
      USING ERRCODE = 'insufficient_privilege', HINT = 'Migrate as its owner; or drop the schema if you did not create it.';
  END IF;
  CREATE TABLE IF NOT EXISTS outbox.migration_lock ();
END $$`

// acquireLock takes the lock of migrations, which keeps other migrations of this database out until the transaction
// ends. It waits in short steps, because another process may drop the schema meanwhile.
func acquireLock(ctx context.Context, pool *pgxpool.Pool) (lock pgx.Tx, err error) {
	waiting, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	for isTaken := false; ; {
		if isTaken && waiting.Err() != nil {
			return nil, fmt.Errorf("waited for another migration of this database (%s): %w", lockHolder(ctx, pool), errors.Join(waiting.Err(), err))
		}
		if _, err = pool.Exec(waiting, ensureLockTable); err == nil {
			if lock, err = lockTable(ctx, waiting, pool); err == nil {
				return lock, nil
			}
		}
		// Other processes may create or drop the schema at the same moment.
		meanwhile := isSQLState(err, lockNotAvailable, uniqueViolation, undefinedTable, undefinedSchema, duplicateTable, duplicateSchema)
		if !meanwhile && (!isTaken || waiting.Err() == nil) {
			return nil, fmt.Errorf("taking the lock of migrations: %w", err)
		}
		isTaken = isTaken || isSQLState(err, lockNotAvailable)
	}
}

// lockTable locks the table until the transaction ends. SHARE UPDATE EXCLUSIVE conflicts with itself.
func lockTable(ctx, waiting context.Context, pool *pgxpool.Pool) (pgx.Tx, error) {
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: `BEGIN ISOLATION LEVEL READ COMMITTED;
		SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL lock_timeout = '1s'`})
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(waiting, "LOCK TABLE outbox.migration_lock IN SHARE UPDATE EXCLUSIVE MODE"); err != nil {
		return nil, errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	return tx, nil
}

func lockHolder(ctx context.Context, pool *pgxpool.Pool) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
	defer cancel()
	holder := "which has just ended"
	const find = `SELECT pg_catalog.format('pid %s, user %s, application %s, from %s', a.pid, a.usename, quote_nullable(a.application_name),
			coalesce(host(a.client_addr), 'this machine'))
		FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.relation = to_regclass('outbox.migration_lock'::text)::oid AND l.granted LIMIT 1`
	_ = pool.QueryRow(ctx, find).Scan(&holder) // an error only makes the message less exact
	return holder
}

// retryLocks retries change if a table was locked for too long, if there was a deadlock with a daemon, or if
// a migration of another database dropped a role at the same moment.
func retryLocks(ctx context.Context, change func() error) error {
	for try := 1; ; try++ {
		err := change()
		if !isSQLState(err, lockNotAvailable, deadlockDetected, undefinedObject) {
			return err
		}
		if try == lockTries {
			return fmt.Errorf("gave up after %d tries of %s each; look for a long transaction in pg_stat_activity: %w", try, lockTimeout, err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(lockPause):
		}
	}
}

func difference(before, after []Migration) []Migration {
	return slices.DeleteFunc(after, func(m Migration) bool { return slices.Contains(before, m) })
}
