package bench_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// serverVariable names a server of yours to measure on.
const serverVariable = "BENCH_DATABASE_URL"

// settings are the server's for all contenders: durable, with room for what is
// measured, and no checkpoint that one of them would pay for by chance.
var settings = map[string]string{
	"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
	"shared_buffers": "2GB", "max_wal_size": "32GB", "checkpoint_timeout": "1h",
	"max_connections": "200",
}

// shared is the server of this run.
var shared server

type server struct {
	once      sync.Once
	url       string
	err       error
	throwaway *throwaway.Server // nil where the server is yours
}

func (s *server) start() (string, error) {
	s.once.Do(func() {
		if s.url = os.Getenv(serverVariable); s.url != "" {
			return
		}
		if s.throwaway, s.err = throwaway.Start(context.Background(), throwaway.WithSettings(settings)); s.err == nil {
			s.url = s.throwaway.URL
		}
	})
	return s.url, s.err
}

func (s *server) stop() {
	if s.throwaway == nil {
		return
	}
	if err := s.throwaway.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping Postgres:", err)
	}
}

// database is one contender's for one round.
type database struct {
	*pgxpool.Pool

	b    testing.TB
	url  string
	name string
}

// newDatabase is empty and belongs to whoever drops it.
func newDatabase(b testing.TB) *database {
	b.Helper()
	serverURL, err := shared.start()
	if err != nil {
		b.Fatal(err)
	}
	d := &database{b: b, name: "drainerbench_" + strings.ToLower(rand.Text())}
	if err := onServer("CREATE DATABASE " + d.name); err != nil {
		b.Fatal(err)
	}
	u, err := url.Parse(serverURL)
	if err != nil {
		b.Fatal(errors.New(serverVariable + " is not a URL"))
	}
	u.Path = "/" + d.name
	d.url = u.String()
	if d.Pool, err = pgxpool.New(context.Background(), d.url); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(d.drop)
	return d
}

// drop leaves nothing that vacuum would work on during the next round.
// Dropping again does nothing.
func (d *database) drop() {
	d.b.Helper()
	d.Close()
	if err := onServer("DROP DATABASE IF EXISTS " + d.name + " WITH (FORCE)"); err != nil {
		d.b.Error(err)
	}
}

func onServer(sql string) error {
	conn, err := pgx.Connect(context.Background(), shared.url)
	if err != nil {
		return fmt.Errorf("connecting to the server: %w", err)
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(context.Background(), sql)
	return err
}

func (d *database) exec(sql string, arguments ...any) {
	d.b.Helper()
	if _, err := d.Exec(d.b.Context(), sql, arguments...); err != nil {
		d.b.Fatalf("%s: %v", sql, err)
	}
}

// read is one value.
func read[V any](d *database, sql string, arguments ...any) V {
	d.b.Helper()
	rows, err := d.Query(d.b.Context(), sql, arguments...)
	if err != nil {
		d.b.Fatalf("%s: %v", sql, err)
	}
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[V])
	if err != nil {
		d.b.Fatalf("%s: %v", sql, err)
	}
	return value
}

// walPosition is in octets.
func (d *database) walPosition() float64 {
	return read[float64](d, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8`)
}

// newOutbox is a database with the drainer's schema.
func newOutbox(b testing.TB) *outbox {
	b.Helper()
	d := newDatabase(b)
	if _, err := migrations.Up(b.Context(), d.url); err != nil {
		b.Fatal(err)
	}
	return &outbox{d}
}
