package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// replica is one place in the fleet. When its daemon ends, it gets another one.
type replica struct {
	name    string
	endures bool // its first daemon must live until the end
	line    *pgproxy.Proxy
	watch   *watch
	mines   *mines

	program *program.Program
	config  string
	url     string // of the database, through its line

	current atomic.Pointer[life]
	done    chan struct{} // closed when no further daemon will start

	mu     sync.Mutex
	faults []string // a data race, a panic, or a daemon that ended by itself
}

// life is one daemon of a replica.
type life struct {
	*program.Daemon
	base   atomic.Pointer[string] // of its HTTP server; nil until it serves
	mined  bool
	sprung atomic.Bool // its mine acted
	ending atomic.Bool // it was stopped
}

func newReplica(t testing.TB, name string, program *program.Program, config, databaseURL string, watch *watch, mines *mines) *replica {
	t.Helper()
	line := pgproxy.New(t, databaseURL)
	through, err := url.Parse(line.Behind(t, databaseURL))
	if err != nil {
		t.Fatal(err)
	}
	query := through.Query()
	query.Set("application_name", name)
	through.RawQuery = query.Encode()
	return &replica{
		name: name, line: line, watch: watch, mines: mines, done: make(chan struct{}),
		program: program, config: config, url: through.String(),
	}
}

// run starts a new daemon when one has ended, as an orchestrator does. It returns when ctx and then the last daemon
// have ended.
func (r *replica) run(ctx context.Context) {
	defer close(r.done)
	for ctx.Err() == nil {
		r.live()
		linger(ctx, 200*time.Millisecond)
	}
}

// live starts a daemon and reads its log until it has ended.
func (r *replica) live() {
	env := []string{"DATABASE_URL=" + r.url}
	mine := r.mines.next(r.name)
	if mine != "" && !r.endures {
		env = append(env, "DRAINER_FAILPOINTS="+mine)
	}
	life := &life{Daemon: r.program.Launch(r.config, env...), mined: len(env) > 1}
	r.current.Store(life)
	var last string
	for line := range life.Lines {
		r.read(life, line)
		last = line
	}
	<-life.Ended
	if code := life.ExitCode(); !mayEndWith(code, life) {
		r.blame(fmt.Sprintf("a daemon ended by itself with exit code %d: %s", code, last))
	}
}

const databaseUnreachable = 4

// mayEndWith allows the exit codes of the signals that were sent, and those of a daemon that loses the database at
// its start. A daemon that was stopped may fail to settle everything.
func mayEndWith(code int, life *life) bool {
	began := life.base.Load() != nil
	switch code {
	case -1:
		return true
	case 0:
		return life.ending.Load()
	case 1:
		return life.ending.Load() || !began
	}
	return code == databaseUnreachable && !began
}

var address = regexp.MustCompile(`"msg":"serving".*"address":"([^"]+)"`)

func (r *replica) read(life *life, line string) {
	r.watch.read("the log of "+r.name, line)
	switch {
	case strings.HasPrefix(line, "failpoint "):
		if !life.sprung.Swap(true) {
			r.mines.wentOff(life.Daemon, line)
		}
	case strings.HasPrefix(line, "WARNING: DATA RACE"), strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
		r.blame(line)
	default:
		if found := address.FindStringSubmatch(line); found != nil {
			base := "http://" + found[1]
			life.base.Store(&base)
		}
	}
}

func (r *replica) blame(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, what)
}

func (r *replica) assertSound(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fault := range r.faults[:min(len(r.faults), 5)] {
		t.Errorf("%s: %s", r.name, fault)
	}
}

var errNotServing = errors.New("no daemon serves there")

// serving returns the daemon that serves now.
func (r *replica) serving() (*life, error) {
	life := r.current.Load()
	if life == nil || life.base.Load() == nil {
		return nil, errNotServing
	}
	select {
	case <-life.Ended:
		return nil, errNotServing
	default:
		return life, nil
	}
}

// signal sends a signal to the daemon that serves now.
func (r *replica) signal(signal syscall.Signal) error {
	life, err := r.serving()
	if err != nil {
		return err
	}
	if signal == syscall.SIGTERM {
		life.ending.Store(true)
	}
	return life.Send(signal)
}

// disarm ends a daemon that carries a mine, and reports whether it did carry one.
func (l *life) disarm() bool {
	if l.mined && !l.ending.Swap(true) {
		_ = l.Send(syscall.SIGTERM)
	}
	return l.mined
}

// impatient does not wait for a suspended daemon.
var impatient = http.Client{Timeout: time.Second}

// metrics returns the metrics of its daemon.
func (r *replica) metrics() (string, error) {
	life, err := r.serving()
	if err != nil {
		return "", err
	}
	response, err := impatient.Get(*life.base.Load() + "/metrics")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	r.watch.read("the metrics of "+r.name, string(body))
	return string(body), err
}

// end kills the daemons of the replica until no further daemon starts.
func (r *replica) end() {
	for {
		if life := r.current.Load(); life != nil {
			_ = life.Send(syscall.SIGKILL)
		}
		select {
		case <-r.done:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// cluster is a separate Postgres that may crash. It has Postgres's default durability.
type cluster struct{ server *throwaway.Server }

func startCluster(t testing.TB) cluster {
	t.Helper()
	server, err := throwaway.Start(context.Background(), throwaway.WithSettings(map[string]string{"max_connections": "200"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	if _, err := migrations.Up(context.Background(), server.URL); err != nil {
		t.Fatal(err)
	}
	return cluster{server}
}

// crash kills the server, and starts it again after that time, or earlier if ctx ends.
func (c cluster) crash(ctx context.Context, downFor time.Duration) error {
	if err := c.server.Kill(); err != nil {
		return err
	}
	linger(ctx, downFor)
	return c.server.Restart(context.WithoutCancel(ctx))
}

// linger waits, but not beyond the end of ctx.
func linger(ctx context.Context, duration time.Duration) {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// configuration is the file of the daemons. It changes while they run.
type configuration struct {
	path string
	text string
}

// newConfiguration adds credentials and a pager to the rig's file. Pages are repeated so often that repetitions
// compete with new pages. Breakers open for a shorter time and rows get fewer attempts, so that the work ends soon. A
// lookup's margin is longer than any suspended daemon can delay a request.
func newConfiguration(t testing.TB, path, pagerURL string) *configuration {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	replaced := strings.NewReplacer(
		"http: {base_url: ", `http: {headers: {Authorization: "Bearer ${env:PROVIDER_TOKEN}"}, base_url: `,
		"    concurrency: 16\n", "    concurrency: 16\n    circuit_breaker: {consecutive_failures: 3, cool_down: 1s}\n",
		"max_attempts: 50", "max_attempts: 8",
		"margin: 500ms", "margin: 1500ms",
	).Replace(string(text))
	c := &configuration{path: path, text: replaced + fmt.Sprintf("page_repeat: 1m\npages:\n  - webhook: {url: %q, secret: \"${env:PAGER_SECRET}\"}\n", pagerURL)}
	if err := c.limit(16); err != nil {
		t.Fatal(err)
	}
	return c
}

// limit sets the concurrency of each provider. It replaces the whole file at once, because a daemon may be reading
// it.
func (c *configuration) limit(concurrency int) error {
	text := strings.ReplaceAll(c.text, "concurrency: 16", fmt.Sprintf("concurrency: %d", concurrency))
	if err := os.WriteFile(c.path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(c.path+".new", c.path)
}
