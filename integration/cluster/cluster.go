// Package cluster runs Postgres servers for a single test, for actions that are not possible on a shared server:
// to crash it, to fill its disk, to promote its standby, or to change its clock.
package cluster

import (
	"context"
	_ "embed"
	"encoding/binary"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// quick turns off the protection against a crash of the machine. Every commit survives a crash of the server.
var quick = throwaway.WithSettings(map[string]string{"fsync": "off", "full_page_writes": "off"})

// Start runs a server with the schema until the test ends.
func Start(t testing.TB, options ...throwaway.Option) *throwaway.Server {
	t.Helper()
	server := start(t, options...)
	if _, err := migrations.Up(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	return server
}

// Standby runs a server that follows the primary.
func Standby(t testing.TB, primary *throwaway.Server, options ...throwaway.Option) *throwaway.Server {
	t.Helper()
	return start(t, append(options, throwaway.Following(primary))...)
}

// Copy runs a server on a copy of another server's present data, like a restored backup.
func Copy(t testing.TB, source *throwaway.Server) *throwaway.Server {
	t.Helper()
	return start(t, throwaway.CopyOf(source))
}

// Dumped runs a server with the content of a logical dump of another.
func Dumped(t testing.TB, source *throwaway.Server) *throwaway.Server {
	t.Helper()
	restored := start(t)
	for _, step := range [][]string{
		{"pg_dumpall", "-d", source.URL, "--roles-only", "--no-role-passwords", "-f", "roles.sql"},
		{"pg_dump", "-d", source.URL, "-f", "dump.sql"},
		{"psql", "-d", restored.URL, "-q", "-f", "roles.sql"}, // an error, because the role postgres exists already, is ignored
		{"psql", "-d", restored.URL, "-q", "-v", "ON_ERROR_STOP=1", "-f", "dump.sql"},
	} {
		if err := restored.Run(t.Context(), step[0], step[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	at, err := url.Parse(source.URL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := at.User.Password()
	Exec(t, restored, "ALTER ROLE postgres PASSWORD '"+password+"'") // the new server has the password of the other one
	host, err := url.Parse(restored.URL)
	if err != nil {
		t.Fatal(err)
	}
	at.Host = host.Host
	restored.URL = at.String()
	return restored
}

func start(t testing.TB, options ...throwaway.Option) *throwaway.Server {
	t.Helper()
	server, err := throwaway.Start(t.Context(), append([]throwaway.Option{drainertest.InMemory(), quick}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// AwaitCaughtUp returns once the standby has replayed every commit of its primary.
func AwaitCaughtUp(t testing.TB, primary, standby *throwaway.Server) {
	t.Helper()
	written := Ask[string](t, primary, `SELECT pg_current_wal_lsn()::text`)
	drainertest.Eventually(t, "the standby has caught up", func() bool {
		return Ask[bool](t, standby, `SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`, written)
	})
}

// Restart starts a server that was killed.
func Restart(t testing.TB, server *throwaway.Server) {
	t.Helper()
	if err := server.Restart(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// Kill stops a server at once, like a crash.
func Kill(t testing.TB, server *throwaway.Server) {
	t.Helper()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
}

// Ask returns the first column of the first row of a query. It opens a connection for the query.
func Ask[V any](t testing.TB, server *throwaway.Server, sql string, args ...any) (value V) {
	t.Helper()
	conn := Connect(t, server)
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// Exec runs statements on a connection that it opens.
func Exec(t testing.TB, server *throwaway.Server, sql string) {
	t.Helper()
	conn := Connect(t, server)
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Connect returns a new connection, which the caller must close.
func Connect(t testing.TB, server *throwaway.Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

//go:embed clock/clock.c
var clockSource string

// Clock is the time of day for one server: in now(), clock_timestamp(), every default and every timer. It runs at
// normal speed.
type Clock struct {
	t      testing.TB
	offset string // path of the file that the server's processes share
}

// NewClock returns a clock that shows the real time. The test is skipped if no C compiler can build the library
// that replaces the server's clock functions.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	folder, err := os.MkdirTemp("", "drainer-clock-") // the server's user cannot enter a t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	c := &Clock{t: t, offset: filepath.Join(folder, "offset")}
	c.SetOff(0)
	source := filepath.Join(folder, "clock.c")
	if err := os.WriteFile(source, []byte(clockSource), 0o644); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-O1", "-o", c.library(), source).CombinedOutput(); err != nil {
		t.Skipf("no clock can be built here: %v\n%s", err, said)
	}
	return c
}

// Of returns the option that gives a server this clock.
func (c *Clock) Of() throwaway.Option {
	return throwaway.WithEnvironment("LD_PRELOAD="+c.library(), "CLOCK_OFFSET="+c.offset)
}

// SetOff sets the difference between this clock and the real time. It may be negative.
func (c *Clock) SetOff(by time.Duration) {
	c.t.Helper()
	file, err := os.OpenFile(c.offset, os.O_CREATE|os.O_WRONLY, 0o644) // not truncated, because the server has mapped the file
	if err != nil {
		c.t.Fatal(err)
	}
	defer file.Close()
	if err := binary.Write(file, binary.NativeEndian, by.Microseconds()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Clock) library() string { return filepath.Join(filepath.Dir(c.offset), "clock.so") }
