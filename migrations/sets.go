package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

//go:embed sql/*.sql
var files embed.FS

func outboxMigrations() ([]Migration, error) {
	if err := Intact(); err != nil {
		return nil, err
	}
	entries, err := files.ReadDir("sql")
	if err != nil {
		return nil, err
	}
	all := make([]Migration, 0, len(entries))
	for _, entry := range entries {
		version, err := goose.NumericComponent(entry.Name())
		if err != nil {
			return nil, err
		}
		_, name, _ := strings.Cut(strings.TrimSuffix(entry.Name(), ".sql"), "_")
		all = append(all, Migration{Set: SetOutbox, Version: version, Name: name})
	}
	return all, nil
}

func outboxUp(ctx context.Context, pool *pgxpool.Pool) error {
	return withGoose(pool, func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

func outboxDown(ctx context.Context, pool *pgxpool.Pool) error {
	return withGoose(pool, func(p *goose.Provider) error {
		_, err := p.DownTo(ctx, 0)
		return err
	})
}

func withGoose(pool *pgxpool.Pool, run func(*goose.Provider) error) error {
	sql, err := fs.Sub(files, "sql")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, stdlib.OpenDBFromPool(pool), sql,
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	if err := errors.Join(run(provider), provider.Close()); err != nil {
		return fmt.Errorf("migrating schema outbox: %w", err)
	}
	return nil
}

// grantRiver lets the drainer work River's tables, which come with no grants, and pins the
// search_path of River's functions, as those of this package have theirs.
const grantRiver = `
DO $$
DECLARE
  relation record;
  routine regprocedure;
BEGIN
  FOR relation IN
    SELECT oid::regclass AS name, relkind FROM pg_class
    WHERE relnamespace = 'outbox'::regnamespace AND relname LIKE 'river\_%' AND relkind IN ('r', 'S')
  LOOP
    IF relation.relkind = 'S' THEN
      EXECUTE format('GRANT USAGE, SELECT ON SEQUENCE %s TO outbox_drainer', relation.name);
    ELSE
      EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO outbox_drainer', relation.name);
    END IF;
  END LOOP;
  GRANT SELECT ON outbox.river_migration TO outbox_operator;  -- which tells whether the schema is behind
  FOR routine IN
    SELECT oid FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname LIKE 'river\_%'
  LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', routine);
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO outbox_drainer', routine);
  END LOOP;
END $$`

func riverMigrations() ([]Migration, error) {
	migrator, err := riverMigrator(nil)
	if err != nil {
		return nil, err
	}
	versions := migrator.AllVersions()
	all := make([]Migration, 0, len(versions))
	for _, v := range versions {
		all = append(all, Migration{Set: SetRiver, Version: int64(v.Version), Name: v.Name})
	}
	return all, nil
}

func riverUp(ctx context.Context, pool *pgxpool.Pool) error {
	if err := riverMigrate(ctx, pool, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, grantRiver); err != nil {
		return fmt.Errorf("granting River's tables: %w", err)
	}
	return nil
}

func riverDown(ctx context.Context, pool *pgxpool.Pool) error {
	return riverMigrate(ctx, pool, rivermigrate.DirectionDown, &rivermigrate.MigrateOpts{TargetVersion: -1})
}

func riverMigrate(ctx context.Context, pool *pgxpool.Pool, direction rivermigrate.Direction, opts *rivermigrate.MigrateOpts) error {
	migrator, err := riverMigrator(pool)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, direction, opts); err != nil {
		return fmt.Errorf("migrating River's tables: %w", err)
	}
	return nil
}

func riverMigrator(pool *pgxpool.Pool) (*rivermigrate.Migrator[pgx.Tx], error) {
	return rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: "outbox"})
}
