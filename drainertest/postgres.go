// Package drainertest gives tests a real Postgres: each test gets a migrated database of its own, on one server
// for each test binary. Tests of the broker adapters get a RabbitMQ, one for each test binary.
//
// The server is that of TEST_DATABASE_URL if set. Otherwise it is a container of TEST_POSTGRES_IMAGE if Docker can
// supply it, or else the Postgres that is installed on the machine.
package drainertest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"

	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// Main runs a package's tests and stops the servers that a test started. A
// package whose tests call Database or RabbitMQ has
//
//	func TestMain(m *testing.M) { drainertest.Main(m) }
func Main(m *testing.M) {
	mainRuns = true
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		stopAll()
		os.Exit(1)
	}()
	code := m.Run()
	stopAll()
	os.Exit(code)
}

func stopAll() {
	sharedRabbitMQ.stop()
	sharedPostgres.stop()
	endings.run()
}

// AtEnd makes [Main] call f after the last test. It is for resources that all tests of a binary share.
func AtEnd(f func()) { endings.add(f) }

var endings endingList

type endingList struct {
	mu  sync.Mutex
	all []func()
}

func (l *endingList) add(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, f)
}

func (l *endingList) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.all {
		f()
	}
	l.all = nil
}

// mainRuns is set by Main before any test runs.
var mainRuns bool

var sharedPostgres = shared[server]{name: "Postgres", launch: startServer, end: server.close}

// shared is a server for this test binary. The first test that needs it starts it.
type shared[S any] struct {
	name   string
	launch func() (S, error)
	end    func(S) error

	mu      sync.Mutex
	started bool
	server  S
	err     error
}

func (s *shared[S]) start() (server S, err error) {
	if !mainRuns {
		return server, fmt.Errorf("add `func TestMain(m *testing.M) { drainertest.Main(m) }` to the package, so that its %s is stopped", s.name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.started = true
		s.server, s.err = s.launch()
	}
	return s.server, s.err
}

func (s *shared[S]) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started || s.err != nil {
		return
	}
	s.started = false
	if err := s.end(s.server); err != nil {
		fmt.Fprintf(os.Stderr, "drainertest: stopping %s: %v\n", s.name, err)
	}
}

const setUpTimeout = 10 * time.Minute

// parameters suit many short-lived databases whose loss does not matter.
var parameters = map[string]string{
	"fsync":              "off",
	"synchronous_commit": "off",
	"full_page_writes":   "off",
	"max_connections":    "500",
}

// server creates databases as copies of its template.
type server struct {
	url      string
	template string
	copying  string        // the option for copying a template
	admin    *pgxpool.Pool // creates and drops
	stop     func() error
}

func startServer() (server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
	defer cancel()
	s, err := chooseServer(ctx)
	if err != nil {
		return server{}, err
	}
	if err := s.createTemplate(ctx); err != nil {
		return server{}, errors.Join(err, s.stop())
	}
	return s, nil
}

func chooseServer(ctx context.Context) (server, error) {
	if given := os.Getenv("TEST_DATABASE_URL"); given != "" {
		return server{url: given, stop: func() error { return nil }}, nil
	}
	image, noContainer := findImage(ctx)
	if noContainer == nil {
		contained, err := startContainer(ctx, image)
		if err == nil {
			return contained, nil
		}
		fmt.Fprintf(os.Stderr, "drainertest: %v; trying the Postgres installed on the machine\n", err)
		noContainer = err
	}
	local, err := throwaway.Start(ctx, InMemory(), throwaway.WithSettings(parameters))
	if err != nil {
		return server{}, fmt.Errorf("no Postgres to test with; set TEST_DATABASE_URL, or start Docker, or install postgresql 14 or later:\n%w",
			errors.Join(noContainer, err))
	}
	return server{url: local.URL, stop: local.Stop}, nil
}

// InMemory keeps a throwaway server's data in memory if Linux has room for it. In memory, a database is created
// and dropped in a fraction of the time, and the tests need thousands.
func InMemory() throwaway.Option {
	const folder, least = "/dev/shm", 4 << 30
	var room syscall.Statfs_t
	if err := syscall.Statfs(folder, &room); err != nil || room.Bavail*uint64(room.Bsize) < least || !hasMemory() {
		return throwaway.In("") // the folder of temporary files
	}
	return throwaway.In(folder)
}

// hasMemory reports whether the machine can keep databases in memory while it compiles and runs tests with the
// race detector. The size of /dev/shm does not say how much memory is free. A machine without /proc/meminfo counts
// as having it, because its containers run in a virtual machine.
func hasMemory() bool {
	const least = 6 << 20 // KiB
	text, _ := os.ReadFile("/proc/meminfo")
	_, after, _ := strings.Cut(string(text), "MemAvailable:")
	var available int
	_, err := fmt.Sscan(after, &available)
	return err != nil || available >= least
}

func (s *server) createTemplate(ctx context.Context) error {
	var err error
	if s.admin, err = pgxpool.New(ctx, s.url); err != nil {
		return fmt.Errorf("connecting to the test server: %w", err)
	}
	var version int
	if err := s.admin.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		return fmt.Errorf("connecting to the test server: %w", err)
	}
	if version >= 150000 { // older versions have no other strategy; it copies files in memory in a third of the time
		s.copying = " STRATEGY FILE_COPY"
	}
	template := newName()
	if err := s.execute(ctx, "CREATE DATABASE "+template); err != nil {
		return err
	}
	url, err := s.databaseURL(template)
	if err != nil {
		return err
	}
	s.template = template
	if _, err := migrations.Up(ctx, url); err != nil {
		return errors.Join(err, s.dropTemplate(ctx))
	}
	return nil
}

func (s *server) dropTemplate(ctx context.Context) error {
	return s.execute(ctx, "DROP DATABASE "+s.template+" WITH (FORCE)")
}

func (s server) close() error {
	err := s.dropTemplate(context.Background())
	s.admin.Close()
	return errors.Join(err, s.stop())
}

const (
	defaultImage    = "postgres:17-alpine"
	dockerTimeout   = 3 * time.Second // for any answer
	registryTimeout = 5 * time.Second // for any answer
	dataFolder      = "/pgdata"
	readyPoll       = 50 * time.Millisecond
	readyTimeout    = 5 * time.Minute // for initdb and two starts while every processor is busy
	dialTimeout     = 5 * time.Second

	// If the test binary is killed, the container ends by itself after this many seconds, and Docker removes it.
	// So no reaper and no image of a reaper are needed.
	lifetime = "3600"
)

// findImage returns the image to run, if it is on the machine or a registry has it. It fails quickly if no
// registry answers.
func findImage(ctx context.Context) (string, error) {
	tclog.SetDefault(tclog.NewNoopLogger())
	image := cmp.Or(os.Getenv("TEST_POSTGRES_IMAGE"), defaultImage)
	return image, ensureImage(ctx, image)
}

func startContainer(ctx context.Context, image string) (server, error) {
	password := rand.Text()
	inMemory := map[string]string{} // a container's disk is many times slower
	if hasMemory() {
		inMemory[dataFolder] = "rw"
	}
	postgres, err := testcontainers.Run(ctx, image,
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithEnv(map[string]string{"POSTGRES_PASSWORD": password, "PGDATA": dataFolder + "/data"}),
		testcontainers.WithTmpfs(inMemory),
		testcontainers.WithEntrypoint("timeout", lifetime, "docker-entrypoint.sh"),
		testcontainers.WithCmd(postgresCommand()...),
		testcontainers.WithHostConfigModifier(func(host *container.HostConfig) { host.AutoRemove = true }),
	)
	stop := func() error {
		return testcontainers.TerminateContainer(postgres, testcontainers.StopTimeout(0))
	}
	if err != nil {
		return server{}, errors.Join(fmt.Errorf("starting a container of %s: %w", image, err), stop())
	}
	databaseURL, err := awaitContainer(ctx, postgres, password)
	if err != nil {
		return server{}, errors.Join(fmt.Errorf("waiting for the container of %s: %w", image, err), stop())
	}
	return server{url: databaseURL, stop: stop}, nil
}

func ensureImage(ctx context.Context, image string) error {
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		return err
	}
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return fmt.Errorf("no Docker: %w", err)
	}
	defer docker.Close()
	if err := within(ctx, dockerTimeout, func(ctx context.Context) error {
		_, err := docker.Ping(ctx, client.PingOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("no Docker: %w", err)
	}
	if _, err := docker.ImageInspect(ctx, image); err == nil {
		return nil
	}
	if err := within(ctx, registryTimeout, func(ctx context.Context) error {
		_, err := docker.DistributionInspect(ctx, image, client.DistributionInspectOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("no image %s in Docker, and no registry to pull it from: %w", image, err)
	}
	pull, err := docker.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return fmt.Errorf("pulling %s: %w", image, err)
	}
	defer pull.Close()
	_, err = io.Copy(io.Discard, pull)
	return err
}

func postgresCommand() []string {
	command := []string{"postgres"}
	for name, value := range parameters {
		command = append(command, "-c", name+"="+value)
	}
	return command
}

// awaitContainer returns the URL once a connection succeeds. During initialisation the image's server listens on
// no port, so the first connection is to the final server.
func awaitContainer(ctx context.Context, postgres *testcontainers.DockerContainer, password string) (string, error) {
	host, err := postgres.Host(ctx)
	if err != nil {
		return "", err
	}
	port, err := postgres.MappedPort(ctx, "5432/tcp")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	// If the tests run in a container and Docker runs outside, they reach the port at Docker's gateway; if Docker
	// runs beside them, at the loopback.
	return firstToConnect(ctx, containerURL("127.0.0.1", port.Port(), password), containerURL(host, port.Port(), password))
}

func containerURL(host, port, password string) string {
	return (&url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", password),
		Host: net.JoinHostPort(host, port), Path: "postgres", RawQuery: "sslmode=disable",
	}).String()
}

func firstToConnect(ctx context.Context, candidates ...string) (string, error) {
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for {
		var failures []error
		for _, candidate := range candidates {
			err := within(ctx, dialTimeout, func(ctx context.Context) error { return connect(ctx, candidate) })
			if err == nil {
				return candidate, nil
			}
			failures = append(failures, err)
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(append(failures, ctx.Err())...)
		case <-poll.C:
		}
	}
}

func connect(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func within(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return do(ctx)
}

// Database creates a migrated database for one test and returns its URL. The user is a superuser, or the user of
// TEST_DATABASE_URL. After the test, open connections to the database are closed, and it is dropped.
func Database(t testing.TB) string {
	t.Helper()
	return create(t, func(s server) string { return s.template })
}

// EmptyDatabase is Database without the schema.
func EmptyDatabase(t testing.TB) string {
	t.Helper()
	return create(t, func(server) string { return "template1" })
}

func create(t testing.TB, template func(server) string) string {
	t.Helper()
	s, err := sharedPostgres.start()
	if err != nil {
		t.Fatal(err)
	}
	name := newName()
	if err := s.execute(t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+template(s)+s.copying); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.execute(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	databaseURL, err := s.databaseURL(name)
	if err != nil {
		t.Fatal(err)
	}
	return databaseURL
}

func newName() string { return "drainertest_" + strings.ToLower(rand.Text()) }

func (s *server) databaseURL(name string) (string, error) {
	u, err := url.Parse(s.url)
	if err != nil || u.Scheme == "" {
		return "", errors.New("TEST_DATABASE_URL is not a URL; write postgres://user:password@host:5432/name")
	}
	u.Path = "/" + name
	return u.String(), nil
}

func (s *server) execute(ctx context.Context, sql string) error {
	if _, err := s.admin.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}
