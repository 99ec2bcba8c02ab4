package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3/lock"
)

const (
	// lockTimeout bounds how long a migration may stand in front of the
	// agents' own statements while it waits for a table.
	lockTimeout = 5 * time.Second
	lockTries   = 5
	lockPause   = time.Second

	// lockID is the advisory lock of all who migrate this schema: "outbox" in ASCII.
	lockID = 0x6f7574626f78
	// lockWait is how long, in seconds, one migration waits for another.
	lockWait = 300
)

// migrate runs change alone, and reports which migrations it changed.
func migrate(ctx context.Context, databaseURL string, change func(context.Context, *pgxpool.Pool) error) (changed []Migration, err error) {
	pool, err := connect(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	unlock, err := acquireLock(ctx, pool)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()

	before, err := status(ctx, pool)
	if err != nil {
		return nil, err
	}
	changeErr := retryLocks(ctx, func() error { return change(ctx, pool) })
	after, err := status(ctx, pool)
	return difference(before, after), errors.Join(changeErr, err)
}

func connect(ctx context.Context, databaseURL string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		// Only the cause: the whole error repeats the URL.
		return nil, fmt.Errorf("reading the database URL (postgres://user@host:5432/name): %w", errors.Unwrap(err))
	}
	config.ConnConfig.RuntimeParams["search_path"] = "outbox" // goose looks for its table there
	config.ConnConfig.RuntimeParams["lock_timeout"] = fmt.Sprint(lockTimeout.Milliseconds())
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

// acquireLock keeps other migrations of this database out until unlock.
func acquireLock(ctx context.Context, pool *pgxpool.Pool) (unlock func() error, err error) {
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID), lock.WithLockTimeout(1, lockWait))
	if err != nil {
		return nil, err
	}
	db := stdlib.OpenDBFromPool(pool)
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	unlock = func() error {
		return errors.Join(locker.SessionUnlock(context.WithoutCancel(ctx), conn), conn.Close(), db.Close())
	}
	if err := locker.SessionLock(ctx, conn); err != nil {
		return nil, errors.Join(fmt.Errorf("waiting for another migration of this database to end: %w", err), conn.Close(), db.Close())
	}
	return unlock, nil
}

// retryLocks tries again where a busy table, or a role that another database
// dropped at the same moment, came in between.
func retryLocks(ctx context.Context, change func() error) error {
	for try := 1; ; try++ {
		err := change()
		if !isSQLState(err, lockNotAvailable, undefinedObject) {
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
