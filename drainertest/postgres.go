// Package drainertest gives tests a real Postgres: a migrated database of
// their own, on one server for each test binary.
//
// Tests of what speaks to a broker get a RabbitMQ, one for each test binary.
//
// The server is the one of TEST_DATABASE_URL if set, else a container of
// TEST_POSTGRES_IMAGE where Docker can supply it, else the Postgres installed
// on the machine.
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

// AtEnd has [Main] call f once the last test is over: for what all tests of a
// binary share.
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

// shared is a server of this test binary, which starts with the first test that
// asks for it.
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

// server is where databases are created, each a copy of the template.
type server struct {
	url      string
	template string
	copying  string        // how a template is copied
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

// InMemory keeps a throwaway server's data in memory where Linux has room for it: there a
// database comes and goes in a fraction of the time, and the tests need thousands.
func InMemory() throwaway.Option {
	const folder, least = "/dev/shm", 4 << 30
	var room syscall.Statfs_t
	if err := syscall.Statfs(folder, &room); err != nil || room.Bavail*uint64(room.Bsize) < least || !hasMemory() {
		return throwaway.In("") // where temporary files are
	}
	return throwaway.In(folder)
}

// hasMemory reports whether the machine can keep databases in memory beside the compiler and
// tests with the race detector. What /dev/shm may hold says nothing of what is free.
// A machine that does not tell has it: its containers are in a virtual machine of their own.
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
	if version >= 150000 { // earlier ones know no other strategy: files in memory are copied in a third of the time
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
	dockerTimeout   = 3 * time.Second // to answer at all
	registryTimeout = 5 * time.Second // to answer at all
	dataFolder      = "/pgdata"
	readyPoll       = 50 * time.Millisecond
	readyTimeout    = 5 * time.Minute // initdb and two starts, where every processor has other work
	dialTimeout     = 5 * time.Second

	// A container whose test binary was killed ends by itself after these
	// seconds, and Docker removes it. That spares the reaper and its image.
	lifetime = "3600"
)

// findImage returns the image to run. It asks for it on the machine first, and
// fails at once where no registry answers.
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

// awaitContainer returns the URL once it connects. The image initialises with
// a server that listens on no port, so the first connection is to the real one.
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
	// Tests in a container reach the port at Docker's gateway if Docker runs
	// outside, and at the loopback if it runs beside them.
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

// Database creates a migrated database for one test and returns its URL. The
// user is a superuser, or the one of TEST_DATABASE_URL. The database is
// dropped after the test, and open connections to it are closed.
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
