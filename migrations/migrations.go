// Package migrations holds the schema outbox and applies it, with River's own
// tables beside it. It is safe to run from several replicas at once.
package migrations

import (
	"context"
	"crypto/sha256"
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
// processes that are migrating. logins are called before each connect.
func Up(ctx context.Context, databaseURL string, logins ...BeforeConnect) ([]Migration, error) {
	return migrate(ctx, databaseURL, logins, func(ctx context.Context, pool *pgxpool.Pool, _ pgx.Tx) error {
		if err := outboxUp(ctx, pool); err != nil {
			return err
		}
		return riverUp(ctx, pool)
	})
}

// Down removes the schema with all that it holds, and returns the migrations
// that were undone. The roles stay while another database needs them. It fails
// if the schema holds objects that no migration made.
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

// Status lists every migration that this program knows, and whether the
// database has it. It changes nothing.
func Status(ctx context.Context, databaseURL string, logins ...BeforeConnect) ([]Migration, error) {
	pool, err := connect(ctx, databaseURL, logins)
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

// appliedVersions is empty where there is no such table yet.
func appliedVersions(ctx context.Context, db Querier, query string) ([]int64, error) {
	rows, _ := db.Query(ctx, query) // CollectRows returns the error too
	versions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil && !isSQLState(err, undefinedTable, undefinedColumn) {
		return nil, fmt.Errorf("reading the schema's version: %w", err)
	}
	return versions, nil
}

// SQLSTATE codes, PostgreSQL documentation, appendix A.
const (
	undefinedTable   = "42P01"
	undefinedColumn  = "42703" // River's table before it knew of lines
	undefinedObject  = "42704"
	lockNotAvailable = "55P03"
	uniqueViolation  = "23505"
	undefinedSchema  = "3F000"
	duplicateTable   = "42P07"
	duplicateSchema  = "42P06"
)

func isSQLState(err error, codes ...string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && slices.Contains(codes, pgErr.Code)
}

// Compare lists what the database lacks of this program's migrations, and what
// a later version has applied to it, of which only set and version are known.
// It takes a few short reads, which the role outbox_drainer may make.
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

// ErrEdited says that this program holds a migration that differs from the one that was
// released. A database that has the released one would never get the difference.
var ErrEdited = errors.New("a released migration was edited; restore it, and put the change into a new one")

// frozen holds the checksums of the migrations that were released, as sha256sum prints them. It
// is empty before the first release; `make freeze` writes it.
//
//go:embed frozen.sha256
var frozen string

// Intact returns ErrEdited if a released migration of this program is not what it was.
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
