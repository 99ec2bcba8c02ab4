package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/program"
)

// replica is one place in the fleet: a daemon, and after its end another one.
type replica struct {
	name    string
	endures bool // its first daemon is to live until the end
	line    *pgproxy.Proxy
	watch   *watch
	mines   *mines

	program *program.Program
	config  string
	url     string // of the database, through its line

	current atomic.Pointer[life]
	done    chan struct{} // nobody follows the daemon that ended

	mu     sync.Mutex
	faults []string // that no daemon may show: a race, a panic, an end of its own accord
}

// life is one daemon of a replica.
type life struct {
	*program.Daemon
	base   atomic.Pointer[string] // of its HTTP server; nil until it serves
	mined  bool
	sprung atomic.Bool // its mine went off
	ending atomic.Bool // it was told to
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

// run starts a daemon whenever there is none, as whoever runs it would, until
// ctx ends and the daemon does.
func (r *replica) run(ctx context.Context) {
	defer close(r.done)
	for ctx.Err() == nil {
		r.live()
		linger(ctx, 200*time.Millisecond)
	}
}

// live starts a daemon and listens to it until it is gone.
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
		r.hear(life, line)
		last = line
	}
	<-life.Ended
	if code := life.ExitCode(); !mayEndWith(code, life) {
		r.blame(fmt.Sprintf("a daemon ended by itself with exit code %d: %s", code, last))
	}
}

const databaseUnreachable = 4

// mayEndWith allows what became of a signal, and that a daemon which loses the
// database at its start does not begin. One that was told to end may have to
// say that it could not settle everything.
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

func (r *replica) hear(life *life, line string) {
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

// serving is the daemon that serves now.
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

// tell sends a signal to the daemon that serves now.
func (r *replica) tell(signal syscall.Signal) error {
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

// impatient gives up on a suspended daemon.
var impatient = http.Client{Timeout: time.Second}

// metrics is what its daemon serves.
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

// end kills whatever runs there until nobody follows it.
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
