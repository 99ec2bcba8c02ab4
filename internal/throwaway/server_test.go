package throwaway

import (
	"context"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestCommittedRowsSurviveAKill(t *testing.T) {
	t.Parallel()
	server := start(t)
	query(t, server, "CREATE TABLE kept AS SELECT 42 AS answer")

	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}

	if got := query(t, server, "SELECT answer FROM kept"); got != "42" {
		t.Errorf("the row came back as %q", got)
	}
}

// Another process may bind the port that was free a moment ago.
func TestAServerWhosePortIsTakenStartsAtAnother(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	taken := other.Addr().(*net.TCPAddr).Port
	server := start(t, func(s *Server) { s.port = taken })
	if port := query(t, server, "SHOW port"); port == strconv.Itoa(taken) {
		t.Errorf("it says that it has port %s", port)
	}
	if at, err := url.Parse(server.URL); err != nil || at.Path != "/postgres" {
		t.Errorf("its URL names the database %q, %v", at.Path, err)
	}
}

func TestSettingsReachTheServer(t *testing.T) {
	t.Parallel()
	durable := start(t)
	quick := start(t, WithoutDurability(), WithSettings(map[string]string{"work_mem": "7MB"}))

	for _, c := range []struct {
		server        *Server
		setting, want string
	}{
		{durable, "fsync", "on"},
		{durable, "synchronous_commit", "on"},
		{quick, "fsync", "off"},
		{quick, "work_mem", "7MB"},
	} {
		if got := query(t, c.server, "SELECT current_setting('"+c.setting+"')"); got != c.want {
			t.Errorf("%s is %q, want %q", c.setting, got, c.want)
		}
	}
}

func TestAStandbyFollowsItsPrimaryUntilItIsPromoted(t *testing.T) {
	t.Parallel()
	primary := start(t)
	query(t, primary, "CREATE TABLE kept AS SELECT 1 AS answer")
	standby := start(t, Following(primary))
	query(t, primary, "UPDATE kept SET answer = 42")
	end := query(t, primary, "SELECT pg_current_wal_lsn()")
	for deadline := time.Now().Add(startTimeout); query(t, standby, "SELECT pg_last_wal_replay_lsn() >= '"+end+"'") != "t"; {
		if time.Now().After(deadline) {
			t.Fatal("the standby does not follow")
		}
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	query(t, standby, "SELECT pg_promote()")
	if got := query(t, standby, "UPDATE kept SET answer = answer RETURNING answer"); got != "42" {
		t.Errorf("the row came over as %q", got)
	}
}

func TestStopLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	server := start(t)
	data := query(t, server, "SHOW data_directory")

	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		t.Errorf("the data are still there: %v", err)
	}
	if err := server.Stop(); err != nil {
		t.Errorf("stopping again: %v", err)
	}
}

// TestServerDiesWithItsParent runs this test binary again as the parent to kill.
func TestServerDiesWithItsParent(t *testing.T) {
	if os.Getenv("THROWAWAY_PARENT") != "" {
		becomeParent(t)
		return
	}
	t.Parallel()
	parent := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithItsParent$")
	scratch, err := os.MkdirTemp("", "throwaway-parent-") // a t.TempDir is closed to the server's owner
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(scratch) })
	if err := os.Chmod(scratch, 0o755); err != nil {
		t.Fatal(err)
	}
	parent.Env = append(os.Environ(), "THROWAWAY_PARENT=1", "TMPDIR="+scratch)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 1024)
	n, err := out.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(string(buffer[:n]))

	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()

	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			return
		}
		_ = conn.Close(t.Context())
	}
	t.Error("the server outlives its parent")
}

func becomeParent(t *testing.T) {
	server, err := Start(t.Context(), WithoutDurability())
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString(server.URL + "\n")
	select {}
}

func start(t *testing.T, options ...Option) *Server {
	t.Helper()
	server, err := Start(t.Context(), options...)
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

func query(t *testing.T, server *Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	values, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(values) == 0 || len(values[0].Rows) == 0 {
		return ""
	}
	return string(values[0].Rows[0][0])
}
