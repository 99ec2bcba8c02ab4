// Package migrations holds the schema outbox and applies it, with River's own
// tables beside it. It is safe to run from several replicas at once.
package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"
)

// The two sets of migrations that share the schema.
const (
	SetOutbox = "outbox"
	SetRiver  = "river"
)

// ErrBehind says that the database lacks migrations that this program needs.
var ErrBehind = errors.New("the schema is behind this program; run `drainer migrate up`")

// Migration is one step of the schema.
type Migration struct {
	Set     string // SetOutbox or SetRiver
	Version int64
	Name    string
	Applied bool
}

// Up applies what is missing and returns it, in the order in which it was
// applied; after an error, what was applied before it. It waits for other
// processes that are migrating.
func Up(ctx context.Context, databaseURL string) ([]Migration, error) {
	return migrate(ctx, databaseURL, func(ctx context.Context, pool *pgxpool.Pool) error {
		if _, err := pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS outbox"); err != nil {
			return fmt.Errorf("creating schema outbox: %w", err)
		}
		if err := outboxUp(ctx, pool); err != nil {
			return err
		}
		return riverUp(ctx, pool)
	})
}

// Down removes the schema with all that it holds, and returns the migrations
// that were undone. The roles stay while another database needs them. It fails
// if somebody else put objects into the schema.
func Down(ctx context.Context, databaseURL string) ([]Migration, error) {
	return migrate(ctx, databaseURL, func(ctx context.Context, pool *pgxpool.Pool) error {
		var exists bool
		if err := pool.QueryRow(ctx, "SELECT to_regnamespace('outbox') IS NOT NULL").Scan(&exists); err != nil || !exists {
			return err
		}
		if err := riverDown(ctx, pool); err != nil {
			return err
		}
		if err := outboxDown(ctx, pool); err != nil {
			return err
		}
		if _, err := pool.Exec(ctx, "DROP TABLE outbox.goose_db_version; DROP SCHEMA outbox"); err != nil {
			return fmt.Errorf("dropping schema outbox: %w", err)
		}
		return nil
	})
}

// Status lists every migration that this program knows, and whether the
// database has it. It changes nothing.
func Status(ctx context.Context, databaseURL string) ([]Migration, error) {
	pool, err := connect(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	return status(ctx, pool)
}

// Check returns ErrBehind if the database lacks a migration. It takes two
// short reads, which the role outbox_drainer may make.
func Check(ctx context.Context, db Querier) error {
	all, err := status(ctx, db)
	if err != nil {
		return err
	}
	if missing := slices.IndexFunc(all, func(m Migration) bool { return !m.Applied }); missing >= 0 {
		return fmt.Errorf("%w (the first one missing is %s %d %s)",
			ErrBehind, all[missing].Set, all[missing].Version, all[missing].Name)
	}
	return nil
}
