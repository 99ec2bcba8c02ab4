package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// grantRiver lets the drainer work River's tables, which come with no grants.
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
  FOR routine IN
    SELECT oid FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname LIKE 'river\_%'
  LOOP
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
		return fmt.Errorf("granting River's tables to outbox_drainer: %w", err)
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
