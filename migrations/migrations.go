// Package migrations contains the migrations of the schema outbox and applies them, together
// with River's migrations. Several replicas may run it at the same time.
package migrations

import (
	"context"
	"crypto/sha256"
	"embed"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// These are the two sets of migrations in the schema, and the set of objects that the owner may add.
const (
	SetOutbox   = "outbox"
	SetRiver    = "river"
	SetOptional = "optional"
)

// ErrBehind says that the database lacks migrations that this program needs.
var ErrBehind = errors.New("the schema is behind this program; run `drainer migrate up`")

// Migration is one step of the schema.
type Migration struct {
	Set     string `json:"set"` // SetOutbox, SetRiver or SetOptional
	Version int64  `json:"version"`
	Name    string `json:"name"`
	Applied bool   `json:"applied"`
}

// Up applies the missing migrations and returns them, in the order in which they were applied. With an
// error, it returns those that were applied before. It waits for other processes that migrate. logins are
// called before each connect.
func Up(ctx context.Context, databaseURL string, logins ...BeforeConnect) ([]Migration, error) {
	return migrate(ctx, databaseURL, logins, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
		if err := outboxUp(ctx, pool); err != nil {
			return err
		}
		return riverUp(ctx, pool)
	})
}

// Down removes the schema with all of its data, and returns the migrations that were undone. It keeps the
// roles if another database needs them. It fails if the schema contains objects that no migration made.
func Down(ctx context.Context, databaseURL string, logins ...BeforeConnect) ([]Migration, error) {
	return migrate(ctx, databaseURL, logins, func(ctx context.Context, pool *pgxpool.Pool, lock pgx.Tx) error {
		var exists bool
		if err := pool.QueryRow(ctx, "SELECT to_regclass('outbox.goose_db_version'::text) IS NOT NULL").Scan(&exists); err != nil {
			return err
		}
		if exists {
			if err := riverDown(ctx, pool); err != nil {
				return err
			}
			if err := outboxDown(ctx, pool); err != nil {
				return err
			}
		}
		if err := pgx.BeginFunc(ctx, lock, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "DROP TABLE IF EXISTS outbox.goose_db_version; DROP TABLE outbox.migration_lock; DROP SCHEMA outbox")
			return err
		}); err != nil {
			return fmt.Errorf("dropping schema outbox: %w", err)
		}
		return nil
	})
}

// Status lists all migrations that this program knows, and whether the database has them. It also lists the
// optional index, if that exists. It changes nothing.
func Status(ctx context.Context, databaseURL string, logins ...BeforeConnect) ([]Migration, error) {
	pool, err := connect(ctx, databaseURL, logins)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	all, err := status(ctx, pool)
	if err != nil {
		return nil, err
	}
	exists, valid, err := HasReferences(ctx, pool)
	if exists {
		all = append(all, referencesIndex(valid))
	}
	return all, err
}

// HasReferences reports whether the index of providers' references exists, and whether it is valid. An index that is
// being built, or whose build failed, is not valid, and no search uses it.
func HasReferences(ctx context.Context, db Querier) (exists, valid bool, err error) {
	rows, _ := db.Query(ctx, "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('outbox.attempt_provider_ref'::text)::oid") // CollectRows returns the error too
	found, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if err != nil {
		return false, false, fmt.Errorf("looking for the index of references: %w", err)
	}
	return len(found) > 0, len(found) > 0 && found[0], nil
}

func referencesIndex(applied bool) Migration {
	return Migration{Set: SetOptional, Version: 1, Name: "references", Applied: applied}
}

// References builds the index of providers' references if it is wanted, or drops it. It returns the index if it changed
// it. It blocks no writer, but waits until earlier transactions have ended.
func References(ctx context.Context, wanted bool, databaseURL string, logins ...BeforeConnect) ([]Migration, error) {
	pool, err := connect(ctx, databaseURL, logins)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := Check(ctx, pool); err != nil {
		return nil, err
	}
	lock, err := acquireLock(ctx, pool)
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Rollback(context.WithoutCancel(ctx)) }()
	exists, valid, err := HasReferences(ctx, pool)
	if err != nil || (exists == wanted && valid == wanted) {
		return nil, err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting to the database: %w", err)
	}
	defer conn.Release()
	statements := []string{"SET lock_timeout = 0", "SET statement_timeout = 0"}
	if exists {
		statements = append(statements, "DROP INDEX CONCURRENTLY outbox.attempt_provider_ref")
	}
	if wanted {
		// An operator may give a reference of any length, but an index entry can have at most 2,704 bytes.
		statements = append(statements, "CREATE INDEX CONCURRENTLY attempt_provider_ref ON outbox.attempt (left(provider_ref, 255), intent_id) WHERE provider_ref IS NOT NULL")
	}
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return nil, fmt.Errorf("changing the index of references; run this command again: %w", err)
		}
	}
	return []Migration{referencesIndex(wanted)}, nil
}

// Check returns ErrBehind if the database lacks a migration. It runs two short queries, which the role
// outbox_drainer may run.
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

// Querier is a pool or a connection of pgx.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func status(ctx context.Context, db Querier) ([]Migration, error) {
	outbox, err := outboxMigrations()
	if err != nil {
		return nil, err
	}
	river, err := riverMigrations()
	if err != nil {
		return nil, err
	}
	if err := markApplied(ctx, db, outbox, outboxVersions); err != nil {
		return nil, err
	}
	if err := markApplied(ctx, db, river, riverVersions); err != nil {
		return nil, err
	}
	return slices.Concat(outbox, river), nil
}

const (
	outboxVersions = "SELECT version_id FROM outbox.goose_db_version WHERE is_applied"
	riverVersions  = "SELECT version FROM outbox.river_migration WHERE line = 'main'"
)

func markApplied(ctx context.Context, db Querier, set []Migration, query string) error {
	versions, err := appliedVersions(ctx, db, query)
	if err != nil {
		return err
	}
	for i := range set {
		set[i].Applied = slices.Contains(versions, set[i].Version)
	}
	return nil
}

// appliedVersions returns the versions that a query finds. It returns none if the table does not exist yet.
func appliedVersions(ctx context.Context, db Querier, query string) ([]int64, error) {
	rows, _ := db.Query(ctx, query) // CollectRows returns the error too
	versions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil && !isSQLState(err, undefinedTable, undefinedColumn) {
		return nil, fmt.Errorf("reading the schema's version: %w", err)
	}
	return versions, nil
}

// These are SQLSTATE codes: PostgreSQL documentation, appendix A.
const (
	undefinedTable   = "42P01"
	undefinedColumn  = "42703" // River's table in versions without the column line
	undefinedObject  = "42704"
	lockNotAvailable = "55P03"
	deadlockDetected = "40P01"
	uniqueViolation  = "23505"
	undefinedSchema  = "3F000"
	duplicateTable   = "42P07"
	duplicateSchema  = "42P06"
)

func isSQLState(err error, codes ...string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && slices.Contains(codes, pgErr.Code)
}

// Compare lists the migrations of this program that the database lacks, and those that a later version has
// applied, of which only set and version are known. It runs a few short queries, which the role
// outbox_drainer may run.
func Compare(ctx context.Context, db Querier) (missing, newer []Migration, err error) {
	known, err := status(ctx, db)
	if err != nil {
		return nil, nil, err
	}
	for set, query := range map[string]string{SetOutbox: outboxVersions, SetRiver: riverVersions} {
		versions, err := appliedVersions(ctx, db, query)
		if err != nil {
			return nil, nil, err
		}
		newer = append(newer, beyond(known, set, versions)...)
	}
	missing = slices.DeleteFunc(slices.Clone(known), func(m Migration) bool { return m.Applied })
	slices.SortFunc(newer, func(a, b Migration) int { return int(a.Version - b.Version) })
	return missing, newer, nil
}

func beyond(known []Migration, set string, versions []int64) (newer []Migration) {
	for _, version := range versions {
		if !slices.ContainsFunc(known, func(m Migration) bool { return m.Set == set && m.Version >= version }) {
			newer = append(newer, Migration{Set: set, Version: version, Applied: true})
		}
	}
	return newer
}

// ErrEdited says that a migration of this program differs from the released one. A database to which the released
// one was applied would never get the difference.
var ErrEdited = errors.New("a released migration was edited; restore it, and put the change into a new one")

// frozen holds the checksums of the released migrations, in the format of sha256sum. It is empty before the first
// release. `make freeze` writes it.
//
//go:embed frozen.sha256
var frozen string

// Intact returns ErrEdited if a migration of this program was edited after its release.
func Intact() error {
	for line := range strings.Lines(frozen) {
		sum, name, found := strings.Cut(strings.TrimSpace(line), "  ")
		if !found {
			return fmt.Errorf("migrations/frozen.sha256: %q is no line of sha256sum", line)
		}
		migration, err := files.ReadFile("sql/" + name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if now := sha256.Sum256(migration); err != nil || hex.EncodeToString(now[:]) != sum {
			return fmt.Errorf("%w (%s)", ErrEdited, name)
		}
	}
	return nil
}

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

// grantRiver gives the daemon's role its rights on River's tables, since River's migrations grant none. It also sets the
// search_path of River's functions, as the outbox's own migrations do for theirs.
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
  GRANT SELECT ON outbox.river_migration TO outbox_operator, outbox_auditor;  -- which tells whether the schema is behind
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
