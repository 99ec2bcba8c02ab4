// Package program builds drainer and runs it as a user does: as processes on one database, which tests can query,
// signal and kill.
//
// The program is built as released, with its failpoints compiled in, or with a deliberate fault: see [Mutants].
package program

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
)

// Program is drainer with one database.
type Program struct {
	Env []string // of its processes, with the environment of this process

	t    testing.TB
	path string
}

// New returns the program as released. env are additional variables, NAME=value.
func New(t testing.TB, databaseURL string, env ...string) *Program {
	t.Helper()
	return variant{}.against(t, databaseURL, env...)
}

// WithFailpoints returns the program with its failpoints compiled in. None is armed. The variable [MutantVariable]
// replaces it by one of [Mutants].
func WithFailpoints(t testing.TB, databaseURL string, env ...string) *Program {
	t.Helper()
	return variant{failpoints: true, mutant: os.Getenv(MutantVariable)}.against(t, databaseURL, env...)
}

// Raced is WithFailpoints with the race detector: a process with a data race logs that.
func Raced(t testing.TB, databaseURL string, env ...string) *Program {
	t.Helper()
	return variant{failpoints: true, raced: true, mutant: os.Getenv(MutantVariable)}.against(t, databaseURL, env...)
}

// Mutated is WithFailpoints without one guard: mutant is the name of one of [Mutants].
func Mutated(t testing.TB, mutant, databaseURL string, env ...string) *Program {
	t.Helper()
	return variant{failpoints: true, mutant: mutant}.against(t, databaseURL, env...)
}

func (v variant) against(t testing.TB, databaseURL string, env ...string) *Program {
	t.Helper()
	path, err := v.path()
	if err != nil {
		t.Fatal(err)
	}
	return &Program{t: t, path: path, Env: append(os.Environ(), append(env, "DATABASE_URL="+databaseURL)...)}
}

// For returns the program for another test, such as a subtest, to which it then reports.
func (p *Program) For(t testing.TB) *Program {
	other := *p
	other.t = t
	return &other
}

// Command returns the command `drainer args…`, not started.
func (p *Program) Command(args ...string) *exec.Cmd {
	command := exec.Command(p.path, args...)
	command.Env = slices.Clip(p.Env) // so that an append does not change other commands
	return command
}

// Run runs the command, and fails the test unless it exits with that code.
func (p *Program) Run(wantExit int, args ...string) (stdout, stderr string) {
	p.t.Helper()
	command := p.Command(args...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	if got := command.ProcessState.ExitCode(); got != wantExit {
		p.t.Fatalf("drainer %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, wantExit, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// RunJSON runs the command with -o json and decodes its output.
func (p *Program) RunJSON(into any, args ...string) {
	p.t.Helper()
	stdout, _ := p.Run(0, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(stdout), into); err != nil {
		p.t.Fatalf("drainer %s: %v\n%s", strings.Join(args, " "), err, stdout)
	}
}

// WriteConfig writes the text to a file and returns its path.
func WriteConfig(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drainer.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Daemon is a process that runs `drainer run`.
type Daemon struct {
	Base  string        // URL of its HTTP server
	Ended chan struct{} // closed when the process has ended
	Lines chan string   // lines of its log that were not read yet; closed after the last

	t       testing.TB
	command *exec.Cmd
	log     strings.Builder
}

// moreThanLogged is more lines than any test logs, so that a daemon never waits until its log is read.
const moreThanLogged = 1 << 17

// Start runs a daemon until the test ends or stops it, and returns once it serves. env are additional variables
// for this process, NAME=value.
func (p *Program) Start(config string, env ...string) *Daemon {
	p.t.Helper()
	d := p.Launch(config, env...)
	d.WaitFor(`"msg":"serving"`)
	d.Base = "http://" + regexp.MustCompile(`"msg":"serving","address":"([^"]+)"`).FindStringSubmatch(d.log.String())[1]
	return d
}

// Launch is Start without the wait: the daemon may end before it serves.
func (p *Program) Launch(config string, env ...string) *Daemon {
	p.t.Helper()
	d := &Daemon{t: p.t, command: p.Command("run", "--config", config), Lines: make(chan string, moreThanLogged), Ended: make(chan struct{})}
	d.command.Env = append(d.command.Env, env...)
	stderr, err := d.command.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := d.command.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		for scanner := bufio.NewScanner(stderr); scanner.Scan(); {
			d.Lines <- scanner.Text()
		}
		close(d.Lines)
		_ = d.command.Wait()
		close(d.Ended)
	}()
	process, ended := d.command.Process, d.Ended // not d, so that a test with many daemons does not keep their logs
	p.t.Cleanup(func() {
		_ = process.Kill()
		<-ended
		if p.t.Failed() {
			p.t.Logf("the end of the log of daemon %d:\n%s", process.Pid, d.Troubles())
		}
	})
	return d
}

// Console returns the URL of its console. Its log line comes before the line of the HTTP server.
func (d *Daemon) Console() string {
	return "http://" + regexp.MustCompile(`"msg":"serving the console","address":"([^"]+)"`).FindStringSubmatch(d.log.String())[1]
}

// PID returns the process id.
func (d *Daemon) PID() int { return d.command.Process.Pid }

// Log returns the lines that WaitFor and Terminate have read so far.
func (d *Daemon) Log() string { return d.log.String() }

// ExitCode returns the exit code, or -1 if a signal ended the process. Ended must be closed.
func (d *Daemon) ExitCode() int { return d.command.ProcessState.ExitCode() }

// Logged counts the log lines so far that contain text.
func (d *Daemon) Logged(text string) (count int) {
	d.readAhead()
	for line := range strings.Lines(d.log.String()) {
		if strings.Contains(line, text) {
			count++
		}
	}
	return count
}

// Troubles returns the last 30 lines of the log so far, without completed attempts.
func (d *Daemon) Troubles() string {
	d.readAhead()
	const most = 30
	var lines []string
	for line := range strings.Lines(d.log.String()) {
		if !strings.Contains(line, `"status":"completed"`) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-most):], "")
}

// readAhead reads the lines that are available, without waiting.
func (d *Daemon) readAhead() {
	for {
		select {
		case line, open := <-d.Lines:
			if !open {
				return
			}
			d.log.WriteString(line + "\n")
		default:
			return
		}
	}
}

// WaitFor reads the log up to a line that contains text.
func (d *Daemon) WaitFor(text string) {
	d.t.Helper()
	if !d.ReadTo(text) {
		d.t.Fatalf("the program ended without logging %s:\n%s", text, d.log.String())
	}
}

// ReadTo reads the log up to a line that contains text. It returns false if the program ended without such a line.
func (d *Daemon) ReadTo(text string) bool {
	d.t.Helper()
	timeout := time.After(drainertest.Patience)
	for {
		select {
		case line, open := <-d.Lines:
			d.log.WriteString(line + "\n")
			if strings.Contains(line, text) || !open {
				return open
			}
		case <-timeout:
			d.t.Fatalf("the program did not log %s:\n%s", text, d.log.String())
		}
	}
}

// Get returns the body of a response of its HTTP server.
func (d *Daemon) Get(path string) string {
	d.t.Helper()
	response, err := http.Get(d.Base + path)
	if err != nil {
		d.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(body)
}

// Signal sends the process a signal.
func (d *Daemon) Signal(signal syscall.Signal) {
	d.t.Helper()
	if err := d.Send(signal); err != nil {
		d.t.Fatal(err)
	}
}

// Send is Signal for a process that may have ended already.
func (d *Daemon) Send(signal syscall.Signal) error { return d.command.Process.Signal(signal) }

// Kill sends SIGKILL and returns once the process has ended.
func (d *Daemon) Kill() {
	d.t.Helper()
	d.Signal(syscall.SIGKILL)
	<-d.Ended
}

// AwaitEnd reads the log to its end and returns once the process has ended.
func (d *Daemon) AwaitEnd() {
	for line := range d.Lines {
		d.log.WriteString(line + "\n")
	}
	<-d.Ended
}

// Terminate sends SIGTERM, waits for the end, and returns the whole log.
func (d *Daemon) Terminate() string {
	d.t.Helper()
	d.Signal(syscall.SIGTERM)
	d.AwaitEnd()
	if !d.command.ProcessState.Success() {
		d.t.Errorf("the program exits with %d after SIGTERM, want 0", d.ExitCode())
	}
	return d.log.String()
}

// variant says how a build differs from the released program.
type variant struct {
	failpoints bool
	raced      bool
	mutant     string // the name of one of Mutants, or empty
}

var builds sync.Map // variant → func() (path string, err error)

// path builds each variant once for this test binary.
func (v variant) path() (string, error) {
	build, _ := builds.LoadOrStore(v, sync.OnceValues(v.build))
	return build.(func() (string, error))()
}

func (v variant) build() (string, error) {
	folder, err := os.MkdirTemp("", "drainer-program-")
	if err != nil {
		return "", err
	}
	drainertest.AtEnd(func() { os.RemoveAll(folder) })
	path := filepath.Join(folder, "drainer")
	arguments := append([]string{"build", "-ldflags", "-s -w", "-o", path}, coverage()...) // with the flags of a release
	if v.failpoints {
		arguments = append(arguments, "-tags", "failpoints")
	}
	if v.raced {
		arguments = append(arguments, "-race")
	}
	if v.mutant != "" {
		overlay, err := overlayOf(folder, v.mutant)
		if err != nil {
			return "", err
		}
		arguments = append(arguments, "-overlay", overlay)
	}
	build := exec.Command("go", append(arguments, "./cmd/drainer")...)
	build.Dir = root()
	output, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, output)
	}
	return path, nil
}

// coverage makes the program measure coverage like the tests that run it. The program writes its profile to
// GOCOVERDIR when it ends, for which main must be measured, too.
func coverage() []string {
	if testing.CoverMode() == "" {
		return nil
	}
	return []string{"-covermode=" + testing.CoverMode(), "-coverpkg=./cmd/drainer,./drainer/...,./dispatch/...,./compensations/..."}
}

// root returns the module's folder, from any working directory.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}
