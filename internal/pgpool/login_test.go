package pgpool_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// counting returns a database whose password comes from a command, and a function that counts the runs of the
// command. The URL has a user without a password.
func counting(t *testing.T, script string, ttl time.Duration) (database *pgpool.Database, runs func() int) {
	t.Helper()
	ran := filepath.Join(t.TempDir(), "ran")
	runs = func() int {
		content, _ := os.ReadFile(ran)
		return strings.Count(string(content), "x")
	}
	command := []string{"/bin/sh", "-c", fmt.Sprintf("printf x >>%s; %s", ran, strings.ReplaceAll(script, "RAN", ran))}
	at := func() (pgpool.Login, error) { return pgpool.Login{URL: "postgres://ann@127.0.0.1:1/outbox"}, nil }
	return pgpool.NewDatabase(at, command, ttl), runs
}

func password(t *testing.T, database *pgpool.Database) string {
	t.Helper()
	config, err := database.Config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return config.ConnConfig.Password
}

func TestAPrintedPasswordIsUsedForItsTime(t *testing.T) {
	t.Parallel()
	database, runs := counting(t, "wc -c <RAN | tr -d ' '", time.Hour)
	for range 3 {
		if got := password(t, database); got != "1" || runs() != 1 {
			t.Errorf("the password is %q after %d runs", got, runs())
		}
	}
	database, runs = counting(t, "wc -c <RAN | tr -d ' '", time.Second)
	drainertest.Eventually(t, "it is printed again", func() bool { return password(t, database) == "2" && runs() == 2 })
}

func TestACommandRunsOnceForAllWhoWait(t *testing.T) {
	t.Parallel()
	database, runs := counting(t, "sleep 0.2; echo one", time.Hour)
	var connects sync.WaitGroup
	for range 16 {
		connects.Go(func() {
			if config, err := database.Config(t.Context()); err != nil || config.ConnConfig.Password != "one" {
				t.Errorf("%v", err)
			}
		})
	}
	connects.Wait()
	if runs() != 1 {
		t.Errorf("it ran %d times", runs())
	}
}

func TestACommandThatFailsIsNotRunForEachConnect(t *testing.T) {
	t.Parallel()
	database, runs := counting(t, "exit 3", time.Hour)
	for range 20 {
		if _, err := database.Config(t.Context()); !errors.Is(err, pgpool.ErrNoLogin) || !strings.HasSuffix(err.Error(), "password_command /bin/sh: exit status 3") {
			t.Fatalf("%v", err)
		}
	}
	if runs() > 2 {
		t.Errorf("it ran %d times at once", runs())
	}
}

func TestWhatACommandPrintsIsBoundedAndNotShown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ script, want string }{
		"nothing":           {"true", "printed nothing"},
		"a line too many":   {"printf '\\n'", "printed nothing"},
		"without an end":    {"echo hunter2 >&2; yes hunter2", "printed more than 64 KiB"},
		"and then it fails": {"echo hunter2; echo hunter2 >&2; exit 1", "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, _ := counting(t, test.script, time.Hour)
			_, err := database.Config(t.Context())
			if !errors.Is(err, pgpool.ErrNoLogin) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v", err)
			}
		})
	}
	gone := pgpool.NewDatabase(func() (pgpool.Login, error) { return pgpool.Login{}, nil }, []string{"/nope/nothing", "hunter2"}, time.Hour)
	if _, err := gone.Config(t.Context()); !errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}

func TestAPasswordThatIsRefusedIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	at, file := drainertest.Login(t, drainertest.Database(t)), filepath.Join(t.TempDir(), "password")
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	right, _ := u.User.Password()
	u.User = url.User(u.User.Username())
	put := func(password string) {
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("wrong")
	database := pgpool.NewDatabase(func() (pgpool.Login, error) { return pgpool.Login{URL: u.String()}, nil }, []string{"cat", file}, time.Hour)
	pool, err := pgpool.Open(t.Context(), database, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.Ping(t.Context()); err == nil {
		t.Skip("this server checks no passwords")
	} else if !pgpool.Refused(err) || !pgpool.Refused(database.Refusal()) {
		t.Fatalf("%v, remembered as %v", err, database.Refusal())
	}
	put(right)
	drainertest.Eventually(t, "the new password is used", func() bool { return pool.Ping(t.Context()) == nil })
	if refusal := database.Refusal(); refusal != nil {
		t.Errorf("still refused: %v", refusal)
	}
}

func TestAPoolersRefusalIsOne(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"md5", "scram-sha-256", "hba"} {
		database := pgpool.At(drainertest.PgBouncer(t, drainertest.Database(t), "transaction", 1, "auth_type = "+method))
		pool, err := pgpool.Open(t.Context(), database, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if err := pool.Ping(t.Context()); !pgpool.Refused(err) || !pgpool.Refused(database.Refusal()) {
			t.Errorf("%s: %v, remembered as %v", method, err, database.Refusal())
		}
	}
}

// With TLS 1.3 a server may check the client's certificate after the client's handshake has ended. Then it sends an
// alert and closes the connection. The client's first write may fail before a read gets the alert.
func TestARefusedCertificateIsToldWhereTheServerHungUpFirst(t *testing.T) {
	t.Parallel()
	hungUp := make(chan struct{})
	database := pgpool.At(refusingClients(t, hungUp))
	config, err := database.Config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.AfterNetConnect = func(ctx context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
		if err := conn.(*tls.Conn).HandshakeContext(ctx); err != nil {
			return conn, err
		}
		<-hungUp
		return conn, nil
	}
	conn, err := pgpool.Connect(t.Context(), config.ConnConfig)
	if err == nil {
		conn.Close(t.Context())
	}
	if !pgpool.Refused(err) {
		t.Errorf("%v", err)
	}
}

// refusingClients returns the URL of a server that demands a certificate from each client. It closes hungUp when it
// has refused the first client.
func refusingClients(t *testing.T, hungUp chan<- struct{}) string {
	t.Helper()
	certified := httptest.NewTLSServer(nil)
	t.Cleanup(certified.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		defer close(hungUp)
		conn, err := listener.Accept()
		if err != nil {
			return // the test has ended
		}
		wantsTLS := make([]byte, 8)
		if _, err := io.ReadFull(conn, wantsTLS); err != nil {
			t.Error(err)
		}
		if _, err := conn.Write([]byte("S")); err != nil {
			t.Error(err)
		}
		server := tls.Server(conn, &tls.Config{Certificates: certified.TLS.Certificates, ClientAuth: tls.RequireAnyClientCert})
		if err := server.Handshake(); err == nil {
			t.Error("a client without a certificate was let in")
		}
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // so that the connection ends with a reset
			t.Error(err)
		}
		conn.Close()
	}()
	return fmt.Sprintf("postgres://ann@%s/outbox?sslmode=require", listener.Addr())
}

func TestAServerThatDoesNotAnswerIsNoRefusal(t *testing.T) {
	t.Parallel()
	database := pgpool.At("postgres://ann:hunter2@127.0.0.1:1/outbox")
	pool, err := pgpool.Open(t.Context(), database, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.Ping(t.Context()); err == nil || pgpool.Refused(err) || database.Refusal() != nil {
		t.Errorf("%v, remembered as %v", err, database.Refusal())
	}
}

func TestAConnectThatIsGivenUpIsNoOutage(t *testing.T) {
	t.Parallel()
	var lines drainertest.Log
	database := pgpool.At("postgres://ann:hunter2@127.0.0.1:1/outbox")
	log := database.Logging(slog.New(slog.NewTextHandler(&lines, nil)))
	pool, err := pgpool.Open(t.Context(), database, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ended, end := context.WithCancel(t.Context())
	end()
	conn, err := pgpool.Connect(ended, pool.Config().ConnConfig)
	if err == nil {
		conn.Close(t.Context())
	}
	log.Warn("given up", "error", err)
	if said := lines.String(); strings.Contains(said, "cannot connect") || !strings.Contains(said, "given up") {
		t.Errorf("a shutdown looks like an outage:\n%s", said)
	}
	if err := pool.Ping(t.Context()); err == nil || !strings.Contains(lines.String(), "cannot connect to the database; each connect tries again") {
		t.Errorf("%v, and the log says\n%s", err, lines.String())
	}
}

// Of several connects at the same time, the one that began last has the newest login. The others may end after it.
func TestOfConnectsAtOnceTheOneThatBeganLastCounts(t *testing.T) {
	t.Parallel()
	right := drainertest.Database(t)
	stranger, err := url.Parse(right)
	if err != nil {
		t.Fatal(err)
	}
	stranger.User = url.UserPassword("stranger", "guess")
	wrong := stranger.String()
	dropped := errors.New("the network dropped it")
	for name, test := range map[string]struct {
		first, second string // the logins
		drops         bool   // the first connect reaches no server
		refused       bool
	}{
		"the first is let in":  {first: right, second: wrong, refused: true},
		"the second is let in": {first: wrong, second: right},
		"the first is lost":    {first: right, second: wrong, drops: true, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			login := test.first
			database := pgpool.NewDatabase(func() (pgpool.Login, error) { return pgpool.Login{URL: login}, nil }, nil, 0)
			pool, err := pgpool.Open(t.Context(), database, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			config := pool.Config().ConnConfig
			dial := config.DialFunc
			config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				login = test.second
				if err := pool.Ping(ctx); (err != nil) != test.refused {
					t.Errorf("the second connect: %v", err)
				}
				if test.drops {
					return nil, dropped
				}
				return dial(ctx, network, address)
			}
			first, err := pgpool.Connect(t.Context(), config)
			if (err == nil) != (test.first == right && !test.drops) {
				t.Errorf("the first connect: %v", err)
			}
			if err == nil {
				defer first.Close(t.Context())
			}
			if refusal := database.Refusal(); (refusal != nil) != test.refused {
				t.Errorf("remembered as %v", refusal)
			}
			login = right
			if err := pool.Ping(t.Context()); err != nil || database.Refusal() != nil {
				t.Errorf("later: %v, remembered as %v", err, database.Refusal())
			}
		})
	}
}

func TestARefusalIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var lines drainertest.Log
	database, _ := counting(t, "exit 3", time.Hour)
	log := database.Logging(slog.New(slog.NewTextHandler(&lines, nil)))
	rivers := slog.New(pgpool.ErrorsAsText(log.Handler()))
	pool, err := pgpool.Open(t.Context(), database, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for range 5 {
		err := pool.Ping(context.WithoutCancel(t.Context()))
		log.Warn("cannot join yet", "error", err)
		rivers.With("worker", "1").Error("River says", "err", err.Error())
	}
	log.Error("attempt", "error", "reset")
	log.Error("lease lost", "error", database.Refusal())
	log.Warn("something else", "error", os.ErrClosed)
	log.Info("joined")
	said := lines.String()
	for text, want := range map[string]int{"cannot log in to the database": 1, "cannot join yet": 0, "River says": 0, "attempt": 1, "lease lost": 1, "something else": 1, "joined": 1} {
		if got := strings.Count(said, text); got != want {
			t.Errorf("%q is logged %d times, want %d:\n%s", text, got, want, said)
		}
	}
}

func TestARefusalAfterAnOutageIsLoggedAtOnce(t *testing.T) {
	t.Parallel()
	var lines drainertest.Log
	gone := filepath.Join(t.TempDir(), "gone")
	database, _ := counting(t, "[ -e "+gone+" ] && exit 3; echo secret", time.Nanosecond)
	database.Logging(slog.New(slog.NewTextHandler(&lines, nil)))
	pool, err := pgpool.Open(t.Context(), database, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for range 3 {
		_ = pool.Ping(t.Context()) // no server listens there
	}
	if err := os.WriteFile(gone, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	drainertest.Eventually(t, "the login is refused", func() bool { // the command runs once a second
		_ = pool.Ping(t.Context())
		return database.Refusal() != nil
	})
	said := lines.String()
	for _, text := range []string{"cannot connect to the database", "cannot log in to the database"} {
		if got := strings.Count(said, text); got != 1 {
			t.Errorf("%q is logged %d times, want once:\n%s", text, got, said)
		}
	}
}
