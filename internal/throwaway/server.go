// Package throwaway runs a Postgres server of its own, on a free port of the
// loopback interface, with data that go when it stops.
package throwaway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/internal/child"
)

// Option changes how the server is made. Without one its settings are Postgres's
// own defaults, so commits are durable.
type Option func(*Server)

// WithSettings sets parameters of postgresql.conf.
func WithSettings(chosen map[string]string) Option {
	return func(s *Server) { maps.Copy(s.settings, chosen) }
}

// WithoutDurability gives up what a crash of the machine, or Kill, would need,
// for speed.
func WithoutDurability() Option {
	return WithSettings(map[string]string{"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"})
}

// WithEnvironment adds variables, NAME=value, to the server's environment.
func WithEnvironment(variables ...string) Option {
	return func(s *Server) { s.environment = append(s.environment, variables...) }
}

// In keeps the data below that folder, which the server's owner must be able to
// reach, instead of the one for temporary files.
func In(folder string) Option {
	return func(s *Server) { s.folder = folder }
}

// Owning gives files to the server's owner, and to no other user, such as its private key.
func Owning(paths ...string) Option {
	return func(s *Server) { s.owned = append(s.owned, paths...) }
}

// Following makes a standby of a running server, from a copy of its data as
// they are now. It follows its primary until SQL promotes it.
func Following(primary *Server) Option {
	return func(s *Server) { s.primary = primary }
}

// CopyOf begins with a copy of a running server's data as they are now, and follows no other.
func CopyOf(source *Server) Option {
	return func(s *Server) { s.primary, s.alone = source, true }
}

const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 10 * time.Second
	readyPoll    = 20 * time.Millisecond
)

// Server is a running Postgres. It ends with the process that started it, but
// only Stop removes its data. A Server is for one goroutine at a time.
type Server struct {
	// URL connects to the database postgres as a superuser, and holds the password.
	URL string

	binaries    string
	folder      string // that dir is made in
	dir         string
	log         *os.File
	owner       *syscall.Credential
	port        int
	settings    map[string]string
	environment []string
	owned       []string
	primary     *Server // that a standby follows, or whose data it begins with
	alone       bool
	running     *child.Process
}

// Start creates and starts a server. It takes the binaries found on PATH or
// where distributions put them, else downloads some.
func Start(ctx context.Context, options ...Option) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := &Server{settings: map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"timezone":                "UTC",
	}}
	for _, option := range options {
		option(s)
	}
	var err error
	if s.binaries, err = findBinaries(ctx); err != nil {
		return nil, err
	}
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	for {
		err := s.choosePort()
		if err == nil {
			err = s.Restart(ctx)
		}
		switch {
		case err == nil:
			return s, nil
		case !s.wasPortTaken():
			return nil, errors.Join(err, s.Stop())
		}
		s.port = 0
	}
}

// choosePort makes the URL one of a port that is free now.
func (s *Server) choosePort() (err error) {
	if s.port == 0 {
		if s.port, err = freePort(); err != nil {
			return err
		}
	}
	at, err := url.Parse(s.URL)
	if err != nil {
		return err
	}
	at.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
	s.URL = at.String()
	return nil
}

// wasPortTaken reports that the server ended because another process had bound its port by then.
func (s *Server) wasPortTaken() bool {
	return strings.Contains(s.logTail(), fmt.Sprintf("already running on port %d?", s.port))
}

// Kill stops the server at once, as a crash of it would: without a checkpoint,
// and with every connection cut. It does nothing on a stopped server.
func (s *Server) Kill() error {
	return s.end(syscall.SIGQUIT)
}

// Restart starts the server again on the same port with the same data, and
// returns when it accepts connections. It kills a server that still runs.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Kill(); err != nil {
		return err
	}
	arguments := []string{"-D", s.data(), "-p", strconv.Itoa(s.port)}
	for name, value := range s.settings {
		arguments = append(arguments, "-c", name+"="+value)
	}
	var err error
	if s.running, err = child.Start(s.command(context.WithoutCancel(ctx), "postgres", arguments...), syscall.SIGQUIT); err != nil {
		return fmt.Errorf("starting postgres: %w", err)
	}
	return s.awaitReady(ctx)
}

// Stop shuts the server down and removes its data. Stopping twice is harmless.
func (s *Server) Stop() error {
	err := s.end(syscall.SIGINT)
	if s.dir == "" {
		return err
	}
	_ = s.log.Close() // a closed log is the second Stop
	return errors.Join(err, os.RemoveAll(s.dir))
}

func (s *Server) end(signal syscall.Signal) error {
	if s.running == nil {
		return nil
	}
	if err := s.running.End(signal, stopTimeout); err != nil {
		return fmt.Errorf("stopping postgres: %w", err)
	}
	s.running = nil
	return nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) create(ctx context.Context) (err error) {
	if s.owner, err = owner(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp(s.folder, "drainer-postgres-"); err != nil {
		return err
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "log")); err != nil {
		return err
	}
	if err := s.handOver(append(s.owned, s.dir)...); err != nil {
		return err
	}
	for _, path := range s.owned {
		if err := os.Chmod(path, 0o600); err != nil {
			return err
		}
	}
	if s.primary != nil {
		return s.copyPrimary(ctx)
	}
	return s.initialize(ctx)
}

// initialize makes the data directory, with a random password.
func (s *Server) initialize(ctx context.Context) error {
	password, passwordFile := rand.Text(), filepath.Join(s.dir, "password")
	if err := os.WriteFile(passwordFile, []byte(password), 0o600); err != nil {
		return err
	}
	if err := s.handOver(passwordFile); err != nil {
		return err
	}
	initdb := s.command(ctx, "initdb", "-D", s.data(), "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync",
		"--auth=scram-sha-256", "--pwfile="+passwordFile)
	if err := initdb.Run(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, s.logTail())
	}
	s.URL = (&url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", password),
		Path: "/postgres", RawQuery: "sslmode=disable",
	}).String()
	return nil
}

// copyPrimary makes the data directory of a standby. The primary's passwords are
// among its data.
func (s *Server) copyPrimary(ctx context.Context) error {
	arguments := []string{"-d", s.primary.URL, "-D", s.data(), "-X", "stream", "--checkpoint=fast", "--no-sync"}
	if !s.alone {
		arguments = append(arguments, "-R")
	}
	if err := s.Run(ctx, "pg_basebackup", arguments...); err != nil {
		return err
	}
	s.URL = s.primary.URL
	return nil
}

func (s *Server) handOver(paths ...string) error {
	if s.owner == nil {
		return nil
	}
	for _, path := range paths {
		if err := os.Chown(path, int(s.owner.Uid), int(s.owner.Gid)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) awaitReady(ctx context.Context) error {
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := s.running.Ended()
	go func() {
		select {
		case <-ended:
			cancel() // another process may have the port, and never answer
		case <-running.Done():
		}
	}()
	for {
		err := ping(running, s.URL)
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("postgres ended while it started\n%s", s.logTail())
		case <-ctx.Done():
			return fmt.Errorf("waiting for postgres to accept connections: %w (%w)\n%s", ctx.Err(), err, s.logTail())
		case <-poll.C:
		}
	}
}

func ping(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// Run runs one of Postgres's programs as the server's owner, in the folder above its data.
func (s *Server) Run(ctx context.Context, program string, arguments ...string) error {
	if err := s.command(ctx, program, arguments...).Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, s.logTail())
	}
	return nil
}

// Rewind makes the data of this server, which was shut down, those of another that runs, and
// lets it follow that one.
func (s *Server) Rewind(ctx context.Context, source *Server) error {
	if err := s.end(syscall.SIGINT); err != nil {
		return err
	}
	return s.Run(ctx, "pg_rewind", "-D", s.data(), "--source-server="+source.URL, "-R", "--no-sync")
}

const logTail = 4 << 10

// command is one of Postgres's programs, run as the server's owner.
func (s *Server) command(ctx context.Context, program string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.binaries, program), arguments...)
	cmd.Dir = s.dir
	cmd.Env = slices.Concat(os.Environ(), []string{"LC_ALL=C"}, s.environment)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner, Setpgid: true} // Ctrl-C is for the parent
	cmd.Stdout, cmd.Stderr = s.log, s.log
	return cmd
}

// logTail is the end of what the server wrote to its log.
func (s *Server) logTail() string {
	said, err := os.ReadFile(s.log.Name())
	if err != nil {
		return ""
	}
	return string(said[max(0, len(said)-logTail):])
}

// owner is who the server runs as: nil for the user of this process, except
// for root, as whom Postgres refuses to run.
func owner() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(account.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(account.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New(`postgres refuses to run as root, and there is no user "postgres" or "nobody"; run as another user`)
}

var errNoBinaries = errors.New("no Postgres binaries on PATH or in the usual folders; install the package postgresql (15 or later)")

// usualFolders are where Debian, Red Hat, Homebrew and Postgres.app install.
var usualFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// findBinaries returns the folder of initdb and postgres.
func findBinaries(ctx context.Context) (string, error) {
	for _, folder := range installed() {
		if complete(folder) {
			return folder, nil
		}
	}
	if os.Geteuid() == 0 {
		return "", errNoBinaries // a download into root's home would be out of its owner's reach
	}
	folder, err := download(ctx)
	if err != nil {
		return "", errors.Join(errNoBinaries, err)
	}
	return folder, nil
}

// installed lists candidates, the newest version of each distribution first.
func installed() []string {
	var folders []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(path))
		}
	}
	for _, pattern := range usualFolders {
		found, _ := filepath.Glob(pattern)
		slices.Reverse(found)
		folders = append(folders, found...)
	}
	return folders
}

func complete(folder string) bool {
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(folder, program)); err != nil {
			return false
		}
	}
	return true
}

// download fetches binaries into the user's cache, once. The library fetches
// only when it starts a server, so it starts one and stops it.
func download(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, "drainer", "postgres-"+string(embeddedpostgres.V17))
	folder := filepath.Join(home, "bin")
	if complete(folder) {
		return folder, nil
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp("", "drainer-postgres-download-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	server := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().Version(embeddedpostgres.V17).
		Port(uint32(port)).CachePath(scratch).RuntimePath(filepath.Join(scratch, "run")).BinariesPath(home).
		StartTimeout(startTimeout).Logger(io.Discard))
	if err := server.Start(); err != nil {
		return "", fmt.Errorf("downloading Postgres: %w", err)
	}
	if err := server.Stop(); err != nil {
		return "", fmt.Errorf("stopping the downloaded Postgres: %w", err)
	}
	return folder, ctx.Err()
}
