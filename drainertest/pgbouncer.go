package drainertest

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/internal/child"
)

// PgBouncer runs a pooler in front of a database until the test ends, and returns the URL that leads through the
// pooler. size is the number of its server connections, and settings are additional lines of its configuration. If
// PgBouncer is not installed, the test is skipped.
func PgBouncer(t testing.TB, databaseURL, mode string, size int, settings ...string) string {
	t.Helper()
	program, err := FindPgBouncer()
	if err != nil {
		t.Skip("there is no pgbouncer to test with; install it")
	}
	behind, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	dir, owner := pooledBy(t)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(poolerSettings(behind, ports[0], mode, size)+strings.Join(settings, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), program, "-q", file)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	running, err := child.Start(command, syscall.SIGQUIT)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { <-running.Ended() }) // the end of the test's context has killed the process
	through := *behind
	through.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
	awaitPooler(t, through.String(), running)
	return through.String()
}

// FindPgBouncer returns the path of the program, or an error of [exec.LookPath].
func FindPgBouncer() (string, error) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		return exec.LookPath("/usr/sbin/pgbouncer") // Debian installs it here, which is not on the PATH of most logins
	}
	return program, nil
}

func poolerSettings(behind *url.URL, port int, mode string, size int) string {
	database := strings.TrimPrefix(behind.Path, "/")
	login := fmt.Sprintf("host=%s port=%s dbname=%s user=%s", behind.Hostname(), cmp.Or(behind.Port(), "5432"), database, behind.User.Username())
	if password, set := behind.User.Password(); set {
		login += " password=" + password
	}
	return fmt.Sprintf(`[databases]
%s = %s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = %s
default_pool_size = %d
`, database, login, port, mode, size)
}

func awaitPooler(t testing.TB, databaseURL string, running *child.Process) {
	t.Helper()
	for {
		conn, err := pgx.Connect(t.Context(), databaseURL)
		if err == nil {
			conn.Close(t.Context())
			return
		}
		if refusal := new(pgconn.PgError); errors.As(err, &refusal) {
			return // the pooler listens, and refuses this login
		}
		select {
		case <-running.Ended():
			t.Fatal("pgbouncer ended: ", running.Failure())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// pooledBy returns a user other than root, because PgBouncer refuses to run as root, and a folder that this user
// can read.
func pooledBy(t testing.TB) (dir string, owner *syscall.Credential) {
	t.Helper()
	if os.Geteuid() != 0 {
		return t.TempDir(), nil
	}
	dir, err := os.MkdirTemp("", "drainer-pgbouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return dir, &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
}
