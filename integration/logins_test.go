package integration_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// strictHBA accepts passwords only by SCRAM. The user by_certificate logs in with a certificate.
const strictHBA = `hostssl all by_certificate 127.0.0.1/32 cert
hostssl all all 127.0.0.1/32 scram-sha-256
hostnossl all all 127.0.0.1/32 scram-sha-256
`

// strict is a server that checks every login.
type strict struct {
	t      *testing.T
	url    string // of a superuser
	folder string // that the server can read
	rig    *harness.Rig
	began  time.Time
}

func newStrict(t *testing.T) *strict {
	t.Helper()
	s := &strict{t: t, began: time.Now()}
	var err error
	if s.folder, err = os.MkdirTemp("", "drainer-logins-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(s.folder) })
	s.must(os.Chmod(s.folder, 0o755))
	s.write("pg_hba.conf", strictHBA)
	authority := drainertest.NewAuthority(t)
	certificate, key := authority.Issue(t, "127.0.0.1", time.Hour)
	s.write("root.pem", authority.PEM)
	s.write("ca.pem", authority.PEM)
	s.write("server.pem", certificate)
	s.write("server.key", key)
	settings := map[string]string{
		"hba_file": s.path("pg_hba.conf"), "ssl": "on",
		"ssl_ca_file": s.path("ca.pem"), "ssl_cert_file": s.path("server.pem"), "ssl_key_file": s.path("server.key"),
	}
	server, err := throwaway.Start(t.Context(), throwaway.WithSettings(settings), throwaway.WithoutDurability(), throwaway.Owning(s.path("server.key")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(server.Kill(), server.Stop()); err != nil {
			t.Error(err)
		}
	})
	s.url = server.URL
	if _, err := migrations.Up(context.Background(), s.url); err != nil {
		t.Fatal(err)
	}
	s.rig = harness.At(t, s.url, nil)
	return s
}

func (s *strict) path(name string) string { return filepath.Join(s.folder, name) }

func (s *strict) write(name, content string) {
	s.t.Helper()
	s.must(os.WriteFile(s.path(name), []byte(content), 0o600))
	s.must(os.Chmod(s.path(name), 0o644))
}

func (s *strict) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// login returns the URL for a user of the server.
func (s *strict) login(user *url.Userinfo, query string) string {
	s.t.Helper()
	u, err := url.Parse(s.url)
	s.must(err)
	u.User, u.RawQuery = user, query
	return u.String()
}

// trust makes the server accept client certificates of this authority only.
func (s *strict) trust(authority *drainertest.Authority) {
	s.t.Helper()
	s.write("ca.pem", authority.PEM)
	s.rig.Exec("SELECT pg_reload_conf()")
}

func (s *strict) createRole(name string) {
	s.t.Helper()
	s.rig.Exec(fmt.Sprintf("CREATE ROLE %s LOGIN IN ROLE outbox_drainer", name))
}

// cutOff closes all of a role's connections.
func (s *strict) cutOff(role string) {
	s.t.Helper()
	if ended := s.rig.Count("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1", role); ended == 0 {
		s.t.Error("the daemon had no connection as " + role)
	}
}

// start runs a daemon with this database block in its configuration.
func (s *strict) start(database string) *program.Daemon {
	s.t.Helper()
	s.rig.Reconfigure(func(config string) string {
		return strings.Replace(config, "providers:\n", "database: "+database+"\nproviders:\n", 1)
	})
	daemon := s.rig.Start()
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("log of the daemon:\n%s", daemon.Troubles())
		}
	})
	return daemon
}

// awaitRefusal closes the role's connections until the daemon reports that its login is refused, and not that the
// database cannot be reached. It leaves one waiting intent.
func (s *strict) awaitRefusal(daemon *program.Daemon, role, says string) {
	s.t.Helper()
	drainertest.Eventually(s.t, "readiness tells the refusal", func() bool {
		s.rig.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role) // also new connections
		said := daemon.Get("/readyz")
		return strings.Contains(said, says) && strings.Contains(said, "each connect tries again")
	})
	if live := daemon.Get("/livez"); live != "ok\n" {
		s.t.Errorf("a restart would cure nothing, and /livez says %s", live)
	}
	if !strings.Contains(daemon.Get("/metrics"), "\ndrainer_database_login_refused 1\n") {
		s.t.Error("the metric does not tell the refusal")
	}
	s.rig.Enqueue(harness.Keyed, 1)
	if s.rig.CountStatus("pending") != 1 {
		s.t.Error("the intent does not wait")
	}
	_, stderr := s.rig.Program.Run(4, "status", "--config", s.rig.Config)
	if !strings.Contains(stderr, strings.SplitN(says, " (", 2)[0]) || strings.Contains(stderr, "cannot be reached") {
		s.t.Errorf("a command says %s", stderr)
	}
}

// awaitRecovery returns once the daemon works again, without a restart or a reload.
func (s *strict) awaitRecovery(daemon *program.Daemon, completed int) {
	s.t.Helper()
	s.rig.AwaitStatus("completed", completed)
	drainertest.Eventually(s.t, "the daemon is ready", func() bool { return daemon.Get("/readyz") == "ok\n" })
	if !strings.Contains(daemon.Get("/metrics"), "\ndrainer_database_login_refused 0\n") {
		s.t.Error("the metric still tells a refusal")
	}
	drainertest.Eventually(s.t, "the log says that the login is accepted again", func() bool {
		return daemon.Logged("the database accepts the login again") == 1
	})
	minutes := 1 + int(time.Since(s.began).Minutes())
	if refusals := daemon.Logged("cannot log in to the database"); refusals < 1 || refusals > minutes {
		s.t.Errorf("the log has %d lines about the refusal, want one a minute", refusals)
	}
	if repeated := daemon.Logged("refuses this login") + daemon.Logged("there is no login") + daemon.Logged("28P01"); repeated > 4*minutes {
		s.t.Errorf("%d lines repeat the refusal", repeated)
	}
	if daemon.Logged("configuration reloaded") != 0 {
		s.t.Error("a new password has reloaded the configuration")
	}
}

// The password is changed at the server first, and the daemon gets it later. This happens if two systems rotate it.
// Each case passes the password to the daemon in another way.
func TestADaemonTakesANewPassword(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]struct {
		database string // a format for the folder of the secret and the URL without the password
		secret   func(s *strict, password string) map[string]string
	}{
		"in a file with the URL": {`{url: "${file:%[1]s/url}"}`, func(s *strict, password string) map[string]string {
			return map[string]string{"url": s.login(url.UserPassword("drainer", password), "sslmode=require") + "\n"}
		}},
		"in a file of its own": {`{url: "%[2]s", password: "${file:%[1]s/password}"}`, func(_ *strict, password string) map[string]string {
			return map[string]string{"password": password}
		}},
		"from a command": {`{url: "%[2]s", password_command: [cat, %[1]s/password], password_ttl: 1h}`, func(_ *strict, password string) map[string]string {
			return map[string]string{"password": password + "\n"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, secret := newStrict(t), newVolume(t)
			s.createRole("drainer")
			change := func(password string) {
				s.rig.Exec(fmt.Sprintf("ALTER ROLE drainer PASSWORD '%s'", password))
			}
			publish := func(password string) { secret.publish(way.secret(s, password)) }
			change("öne /?\"#%")
			publish("öne /?\"#%")
			daemon := s.start(fmt.Sprintf(way.database, secret.folder, s.login(url.User("drainer"), "sslmode=disable")))
			s.rig.Enqueue(harness.Keyed, 1)
			s.rig.AwaitStatus("completed", 1)

			change("two")
			s.awaitRefusal(daemon, "drainer", "the database refuses this login (SQLSTATE 28P01)")
			stdout, _ := s.rig.Program.Run(4, "doctor", "--config", s.rig.Config)
			if !strings.Contains(stdout, "refuses the password of drainer") {
				t.Errorf("the doctor says\n%s", stdout)
			}
			publish("two")
			s.awaitRecovery(daemon, 2)

			publish("three") // in this order the server refuses nothing
			change("three")
			s.cutOff("drainer")
			s.rig.Enqueue(harness.Keyed, 1)
			s.rig.AwaitStatus("completed", 3)
			daemon.Terminate()
		})
	}
}

func TestAConsoleTakesANewPassword(t *testing.T) {
	t.Parallel()
	s, secret := newStrict(t), newVolume(t)
	change := func(password string) { s.rig.Exec(fmt.Sprintf("ALTER ROLE watcher PASSWORD '%s'", password)) }
	publish := func(password string) { secret.publish(map[string]string{"password": password}) }
	s.rig.Exec("CREATE ROLE watcher LOGIN IN ROLE outbox_operator")
	change("one")
	publish("one")
	s.rig.Reconfigure(func(config string) string {
		return strings.Replace(config, "providers:\n", fmt.Sprintf("database: {url: %q, password_command: [/bin/cat, %s], password_ttl: 1s}\nproviders:\n", s.login(url.User("watcher"), "sslmode=disable"), secret.path("password")), 1)
	})
	console := s.rig.Program.Command("console", "--config", s.rig.Config, "--listen", "127.0.0.1:0")
	stderr, err := console.StderrPipe()
	s.must(err)
	s.must(console.Start())
	t.Cleanup(func() {
		_ = console.Process.Kill()
		_ = console.Wait()
	})
	said := bufio.NewScanner(stderr)
	if !said.Scan() {
		t.Fatal("the console does not say where it is")
	}
	at := strings.TrimPrefix(said.Text(), "The console is at ")
	log := make(chan string, 1)
	go func() {
		rest, _ := io.ReadAll(stderr)
		log <- string(rest)
	}()
	cutOff := func() { s.rig.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'watcher'") }
	shows := func(status int, text string) {
		t.Helper()
		drainertest.Eventually(t, "a page with "+text, func() bool {
			cutOff() // also new connections
			response, err := http.Get(at + "intents")
			if err != nil {
				return false
			}
			defer response.Body.Close()
			page, err := io.ReadAll(response.Body)
			return err == nil && response.StatusCode == status && strings.Contains(string(page), text)
		})
	}
	shows(http.StatusOK, "Intents")
	change("two")
	shows(http.StatusServiceUnavailable, "database refuses this login")
	publish("two")
	shows(http.StatusOK, "Intents")
	s.must(os.Remove(filepath.Join(secret.path("..data"), "password")))
	shows(http.StatusServiceUnavailable, "is no login for the database")
	publish("two")
	shows(http.StatusOK, "Intents")
	_ = console.Process.Kill()
	if said := <-log; strings.Count(said, "cannot log in to the database") != 1 || strings.Contains(said, "the database cannot be reached") {
		t.Errorf("the log does not say once that the login is refused:\n%s", said)
	}
}

func TestACommandWithoutAPasswordIsToldFromADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	s, secret := newStrict(t), newVolume(t)
	s.createRole("drainer")
	s.rig.Exec("ALTER ROLE drainer PASSWORD 'one'")
	program := `#!/bin/sh
echo hunter2 >&2
cat ` + secret.path("password") + ` || exit 7
`
	secret.publish(map[string]string{"password": "one", "program": program})
	s.must(os.Chmod(secret.path("program"), 0o700))
	daemon := s.start(fmt.Sprintf(`{url: "%s", password_command: [%s], password_ttl: 1s}`, s.login(url.User("drainer"), "sslmode=disable"), secret.path("program")))
	s.rig.Enqueue(harness.Keyed, 1)
	s.rig.AwaitStatus("completed", 1)

	s.must(os.Remove(filepath.Join(secret.path("..data"), "password")))
	s.awaitRefusal(daemon, "drainer", "there is no login for the database: password_command "+secret.path("program")+": exit status 7")
	secret.publish(map[string]string{"password": "one", "program": program})
	s.must(os.Chmod(secret.path("program"), 0o700))
	s.awaitRecovery(daemon, 2)
	if strings.Contains(daemon.Terminate(), "hunter2") {
		t.Error("what the command prints is logged")
	}
}

func TestADaemonTakesANewCertificate(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]struct {
		says   string
		change func(s *strict, one, two *drainertest.Authority, renew func(*drainertest.Authority, time.Duration)) (valid *drainertest.Authority)
	}{
		"after its authority was replaced": {"(SQLSTATE 28000)", func(s *strict, _, two *drainertest.Authority, _ func(*drainertest.Authority, time.Duration)) *drainertest.Authority {
			s.trust(two)
			return two
		}},
		"after it has expired": {"(TLS: ", func(_ *strict, one, _ *drainertest.Authority, renew func(*drainertest.Authority, time.Duration)) *drainertest.Authority {
			renew(one, -time.Minute)
			return one
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, secret := newStrict(t), newVolume(t)
			s.createRole("by_certificate")
			renew := func(authority *drainertest.Authority, validFor time.Duration) {
				certificate, key := authority.Issue(t, "by_certificate", validFor)
				secret.publish(map[string]string{"tls.crt": certificate, "tls.key": key})
			}
			one, two := drainertest.NewAuthority(t), drainertest.NewAuthority(t)
			s.trust(one)
			renew(one, time.Hour)
			query := url.Values{
				"sslmode": {"verify-full"}, "sslrootcert": {s.path("root.pem")},
				"sslcert": {secret.path("tls.crt")}, "sslkey": {secret.path("tls.key")},
			}
			daemon := s.start(fmt.Sprintf(`{url: "%s"}`, s.login(url.User("by_certificate"), query.Encode())))
			s.rig.Enqueue(harness.Keyed, 1)
			s.rig.AwaitStatus("completed", 1)

			valid := refusal.change(s, one, two, renew)
			s.awaitRefusal(daemon, "by_certificate", "the database refuses this login "+refusal.says)
			renew(valid, time.Hour)
			s.awaitRecovery(daemon, 2)
			daemon.Terminate()
		})
	}
}

// A process must not use two outboxes, so a URL with another server or database needs a restart. The login in this
// URL belongs to the other server, so the daemon does not send it to its present server.
func TestAnotherServerInTheURLNeedsARestart(t *testing.T) {
	t.Parallel()
	s, secret := newStrict(t), newVolume(t)
	s.createRole("drainer")
	s.rig.Exec("ALTER ROLE drainer PASSWORD 'one'")
	s.rig.Exec("CREATE DATABASE elsewhere")
	secret.publish(map[string]string{"url": s.login(url.UserPassword("drainer", "one"), "sslmode=disable")})
	daemon := s.start(fmt.Sprintf(`{url: "${file:%s}"}`, secret.path("url")))
	s.rig.Enqueue(harness.Keyed, 1)
	s.rig.AwaitStatus("completed", 1)

	moved, err := url.Parse(s.login(url.UserPassword("drainer", "two"), "sslmode=disable"))
	s.must(err)
	moved.Path = "elsewhere"
	secret.publish(map[string]string{"url": moved.String()})
	s.cutOff("drainer")
	s.rig.Enqueue(harness.Keyed, 1)
	s.rig.AwaitStatus("completed", 2)
	drainertest.Eventually(t, "the log says so", func() bool { return daemon.Logged("leads to another server or database now; restart") == 1 })
	daemon.Terminate()
}

// PgBouncer 1.18 does not tell a client why the server refuses the login.
func TestALoginThatThePoolersServerRefusesIsTold(t *testing.T) {
	t.Parallel()
	s := newStrict(t)
	s.createRole("drainer")
	s.rig.Exec("ALTER ROLE drainer PASSWORD 'one'")
	pooled := drainertest.PgBouncer(t, s.login(url.UserPassword("drainer", "one"), "sslmode=disable"), "transaction", 10, "server_login_retry = 1")
	daemon := s.start(fmt.Sprintf(`{url: "%s&default_query_exec_mode=exec"}`, pooled))
	s.rig.Enqueue(harness.Keyed, 1)
	s.rig.AwaitStatus("completed", 1)

	s.rig.Exec("ALTER ROLE drainer PASSWORD 'two'")
	s.cutOff("drainer")
	drainertest.Eventually(t, "readiness tells the refusal", func() bool {
		return strings.HasPrefix(daemon.Get("/readyz"), "the pooler cannot log in at the database, or the database is away")
	})
	if !strings.Contains(daemon.Get("/metrics"), "\ndrainer_database_login_refused 0\n") {
		t.Error("the metric tells a refusal, and the database may be away")
	}
	s.rig.Exec("ALTER ROLE drainer PASSWORD 'one'")
	s.rig.Enqueue(harness.Keyed, 1)
	s.rig.AwaitStatus("completed", 2)
	drainertest.Eventually(t, "the daemon is ready", func() bool { return daemon.Get("/readyz") == "ok\n" })
	minutes := 1 + int(time.Since(s.began).Minutes())
	if told, repeated := daemon.Logged("cannot log in to the database"), daemon.Logged("server login has been failing"); told < 1 || told > minutes || repeated > 4*minutes {
		t.Errorf("%d lines tell that the pooler does not come through, and %d repeat it", told, repeated)
	}
	daemon.Terminate()
}

// Each loop of the daemon needs the database and tries again.
func TestADatabaseThatIsAwayIsALineAMinute(t *testing.T) {
	t.Parallel()
	server, err := throwaway.Start(t.Context(), throwaway.WithoutDurability())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(server.Kill(), server.Stop()); err != nil {
			t.Error(err)
		}
	})
	if _, err := migrations.Up(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	rig := harness.At(t, server.URL, nil)
	daemon := rig.Start()
	rig.Enqueue(harness.Keyed, 1)
	rig.AwaitStatus("completed", 1)
	lines := func() int {
		return strings.Count(daemon.Log(), `"level":"WARN"`) + strings.Count(daemon.Log(), `"level":"ERROR"`)
	}

	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	before, began := lines(), time.Now()
	var away net.Listener // takes the server's place and counts the connects
	drainertest.Eventually(t, "the address is free", func() bool { away, err = net.Listen("tcp", at.Host); return err == nil })
	for range 200 {
		caller, err := away.Accept()
		if err != nil {
			t.Fatal(err)
		}
		caller.Close()
	}
	away.Close()
	told, minutes := daemon.Logged("cannot connect to the database; each connect tries again"), 1+int(time.Since(began)/time.Minute)
	if told < 1 || told > minutes {
		t.Errorf("%d lines say that there is no connection, in %d minutes", told, minutes)
	}
	// Each loop also logs one line when its connection breaks during its work.
	got := lines() - before
	t.Logf("%d lines after 200 connects", got)
	if got > 20+told {
		t.Errorf("200 connects that failed are %d lines", got)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	rig.Enqueue(harness.Keyed, 1)
	rig.AwaitStatus("completed", 2)
	drainertest.Eventually(t, "it says so", func() bool { return daemon.Logged("the database takes connections again") >= 1 })
	daemon.Terminate()
}
