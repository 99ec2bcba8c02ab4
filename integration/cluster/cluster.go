// Package cluster runs Postgres servers of a test's own, for what must not be
// done to a server that others use: to crash it, to fill it up, to promote its
// standby, to move its clock.
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

// quick leaves out what only a crash of the machine would need. Every commit
// survives a crash of the server.
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

// Standby runs one that follows the primary.
func Standby(t testing.TB, primary *throwaway.Server, options ...throwaway.Option) *throwaway.Server {
	t.Helper()
	return start(t, append(options, throwaway.Following(primary))...)
}

// Copy runs one on a copy of the data of another as they are now, as a backup is restored.
func Copy(t testing.TB, source *throwaway.Server) *throwaway.Server {
	t.Helper()
	return start(t, throwaway.CopyOf(source))
}

// Dumped runs one with what a logical dump of another holds.
func Dumped(t testing.TB, source *throwaway.Server) *throwaway.Server {
	t.Helper()
	restored := start(t)
	for _, step := range [][]string{
		{"pg_dumpall", "-d", source.URL, "--roles-only", "--no-role-passwords", "-f", "roles.sql"},
		{"pg_dump", "-d", source.URL, "-f", "dump.sql"},
		{"psql", "-d", restored.URL, "-q", "-f", "roles.sql"}, // postgres is there already
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
	Exec(t, restored, "ALTER ROLE postgres PASSWORD '"+password+"'") // it is reached as the other was
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

// AwaitCaughtUp returns once the standby knows every commit of its primary.
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

// Kill stops a server at once, as a crash does.
func Kill(t testing.TB, server *throwaway.Server) {
	t.Helper()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
}

// Ask is the first column of the first row of a query, made on a connection of
// its own.
func Ask[V any](t testing.TB, server *throwaway.Server, sql string, args ...any) (value V) {
	t.Helper()
	conn := Connect(t, server)
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// Exec runs statements on a connection of its own.
func Exec(t testing.TB, server *throwaway.Server, sql string) {
	t.Helper()
	conn := Connect(t, server)
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Connect is another session, for the caller to close.
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

// Clock is the time of day as one server sees it: now(), clock_timestamp(),
// every default and every timer. It goes as fast as any other.
type Clock struct {
	t      testing.TB
	offset string // path of the file that the server's processes share
}

// NewClock shows the real time. The test is skipped where no C compiler makes
// the library that stands before the server's own.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	folder, err := os.MkdirTemp("", "drainer-clock-") // a t.TempDir is closed to the server's owner
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

// Of is the option of the server whose clock this is.
func (c *Clock) Of() throwaway.Option {
	return throwaway.WithEnvironment("LD_PRELOAD="+c.library(), "CLOCK_OFFSET="+c.offset)
}

// SetOff makes the clock jump to that much after the real time, or before it.
func (c *Clock) SetOff(by time.Duration) {
	c.t.Helper()
	file, err := os.OpenFile(c.offset, os.O_CREATE|os.O_WRONLY, 0o644) // not truncated: the server has it in its memory
	if err != nil {
		c.t.Fatal(err)
	}
	defer file.Close()
	if err := binary.Write(file, binary.NativeEndian, by.Microseconds()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Clock) library() string { return filepath.Join(filepath.Dir(c.offset), "clock.so") }
