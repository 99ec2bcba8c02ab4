package doctor

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/internal/child"
)

func TestAPoolerIsToldByWhatItDoes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		poolMode, query string
		size            int
		want            []Finding
	}{
		"session": {"session", "", 20, []Finding{
			{"pooler", OK, "a pooler in session mode; prepared statements work", ""},
			{"notifications", OK, "LISTEN and NOTIFY work", ""},
		}},
		"transaction": {"transaction", "", 20, []Finding{
			{"pooler", Problem, "a pooler in transaction mode loses prepared statements, which this database URL asks for", "add default_query_exec_mode=exec to the database URL; or let PgBouncer 1.21 or later keep prepared statements (max_prepared_statements)"},
			unheard,
		}},
		"transaction, with exec": {"transaction", "default_query_exec_mode=exec", 20, []Finding{
			{"pooler", OK, "a pooler in transaction mode, and statements are not prepared (default_query_exec_mode=exec)", ""},
			unheard,
		}},
		"transaction, with one server connection": {"transaction", "default_query_exec_mode=exec", 1, []Finding{
			{"pooler", OK, "a pooler in transaction mode, and statements are not prepared (default_query_exec_mode=exec)", ""},
			unheard,
		}},
		"statement": {"statement", "", 20, []Finding{
			{"pooler", Problem, "a pooler in statement mode, which refuses transactions", "set pool_mode = session or transaction for this database"},
			unheard,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := healthy(t)
			w.Database = w.config(w.throughPgBouncer(test.poolMode, test.size, test.query))
			found := w.examine()
			for _, want := range test.want {
				if !contains(found, want) {
					t.Errorf("want %+v, found %s", want, lines(found))
				}
			}
			for _, f := range found {
				if isExpected := contains(test.want, f); f.Verdict != OK && !isExpected {
					t.Errorf("also found %+v", f)
				}
			}
		})
	}
}

var unheard = Finding{
	"notifications", Warning, "a notification did not arrive within 2s, so new intents are found by polling, every 250 ms",
	"if a quarter of a second matters: connect to Postgres itself, or to a pooler in session mode",
}

func contains(findings []Finding, want Finding) bool {
	for _, f := range findings {
		if f == want {
			return true
		}
	}
	return false
}

// throughPgBouncer is the world's URL by way of a real one.
func (w *world) throughPgBouncer(mode string, size int, query string) string {
	w.t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program = "/usr/sbin/pgbouncer"; !isThere(program) {
			w.t.Skip("there is no pgbouncer to test with; install it")
		}
	}
	u, err := url.Parse(w.url(query))
	if err != nil {
		w.t.Fatal(err)
	}
	port := freePort(w.t)
	dir, owner := w.pooledBy()
	settings := fmt.Sprintf(`[databases]
%[1]s = host=127.0.0.1 port=%[2]s dbname=%[1]s user=%[3]s password=%[4]s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[5]d
unix_socket_dir =
auth_type = any
pool_mode = %[6]s
default_pool_size = %[7]d
`, w.database, u.Port(), w.role, w.password, port, mode, size)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
		w.t.Fatal(err)
	}
	command := exec.CommandContext(w.t.Context(), program, "-q", file)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	running, err := child.Start(command, syscall.SIGQUIT)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { <-running.Ended() }) // the test's context has ended, and with it the process
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	w.awaitPooler(u.String(), running)
	return u.String()
}

func (w *world) awaitPooler(databaseURL string, running *child.Process) {
	w.t.Helper()
	for {
		conn, err := pgx.Connect(w.t.Context(), databaseURL)
		if err == nil {
			conn.Close(w.t.Context())
			return
		}
		select {
		case <-running.Ended():
			w.t.Fatal("pgbouncer ended: ", running.Failure())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// pooledBy is somebody else than root, as whom pgbouncer refuses to run, and a
// folder that he can read.
func (w *world) pooledBy() (dir string, owner *syscall.Credential) {
	w.t.Helper()
	if os.Geteuid() != 0 {
		return w.t.TempDir(), nil
	}
	dir, err := os.MkdirTemp("", "doctor-pgbouncer-")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		w.t.Fatal(err)
	}
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	if err != nil {
		w.t.Fatal(err)
	}
	return dir, &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
