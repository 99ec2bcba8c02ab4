// Package program builds drainer and runs it as a person does: as processes,
// against one database, to be asked, signalled and killed.
//
// It is built as it ships, with its failpoints compiled in, or broken on
// purpose: see [Mutants].
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

// Program is drainer against one database.
type Program struct {
	Env []string // of its processes, this one's environment included

	t    testing.TB
	path string
}

// New is the program as it ships. env are more variables, NAME=value.
func New(t testing.TB, databaseURL string, env ...string) *Program {
	t.Helper()
	return variant{}.against(t, databaseURL, env...)
}

// WithFailpoints is the program with its failpoints compiled in; none is armed.
// The variable [MutantVariable] puts one of [Mutants] in its place.
func WithFailpoints(t testing.TB, databaseURL string, env ...string) *Program {
	t.Helper()
	return variant{failpoints: true, mutant: os.Getenv(MutantVariable)}.against(t, databaseURL, env...)
}

// Raced is WithFailpoints, built with the race detector: a process that races
// says so in its log.
func Raced(t testing.TB, databaseURL string, env ...string) *Program {
	t.Helper()
	return variant{failpoints: true, raced: true, mutant: os.Getenv(MutantVariable)}.against(t, databaseURL, env...)
}

// Mutated is WithFailpoints with a guard taken out: one of [Mutants], by name.
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

// For reports to another test, a subtest perhaps.
func (p *Program) For(t testing.TB) *Program {
	other := *p
	other.t = t
	return &other
}

// Command is `drainer args…`, not started.
func (p *Program) Command(args ...string) *exec.Cmd {
	command := exec.Command(p.path, args...)
	command.Env = slices.Clip(p.Env) // appending changes this process alone
	return command
}

// Run fails the test unless the command ends with that exit code.
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

// RunJSON decodes what the command says with -o json.
func (p *Program) RunJSON(into any, args ...string) {
	p.t.Helper()
	stdout, _ := p.Run(0, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(stdout), into); err != nil {
		p.t.Fatalf("drainer %s: %v\n%s", strings.Join(args, " "), err, stdout)
	}
}

// WriteConfig returns the path of a file with that text.
func WriteConfig(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drainer.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Daemon is `drainer run` in a process of its own.
type Daemon struct {
	Base  string        // of its HTTP server
	Ended chan struct{} // closed when the process is gone
	Lines chan string   // of its log, not read so far; closed at its end

	t       testing.TB
	command *exec.Cmd
	log     strings.Builder
}

// moreThanLogged is more lines than any test logs: a daemon must not wait for
// its log to be read.
const moreThanLogged = 1 << 17

// Start runs a daemon until the test ends or takes it down, and returns once it
// serves. env are variables of this process alone, NAME=value.
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
	process, ended := d.command.Process, d.Ended // a test may run through more daemons than it wants to keep
	p.t.Cleanup(func() {
		_ = process.Kill()
		<-ended
		if p.t.Failed() {
			p.t.Logf("the end of the log of daemon %d:\n%s", process.Pid, d.Troubles())
		}
	})
	return d
}

// Console is the URL of its console, which it serves before it says that it serves.
func (d *Daemon) Console() string {
	return "http://" + regexp.MustCompile(`"msg":"serving the console","address":"([^"]+)"`).FindStringSubmatch(d.log.String())[1]
}

// PID is the process's id.
func (d *Daemon) PID() int { return d.command.Process.Pid }

// Log returns the lines that WaitFor and Terminate have read so far.
func (d *Daemon) Log() string { return d.log.String() }

// ExitCode is -1 for a process that a signal ended. Ended must be closed.
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

// Troubles is the end of the log so far, without deliveries that went well.
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

// readAhead reads the lines that are there, and waits for none.
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

// ReadTo reads the log up to a line that contains text. It reports false for a
// program that ended without one.
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

// Get is the body of an answer of its HTTP server.
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

// Send is Signal to a process that may be gone already.
func (d *Daemon) Send(signal syscall.Signal) error { return d.command.Process.Signal(signal) }

// Kill is kill -9; it returns once the process is gone.
func (d *Daemon) Kill() {
	d.t.Helper()
	d.Signal(syscall.SIGKILL)
	<-d.Ended
}

// AwaitEnd reads the log to its end and returns once the process is gone.
func (d *Daemon) AwaitEnd() {
	for line := range d.Lines {
		d.log.WriteString(line + "\n")
	}
	<-d.Ended
}

// Terminate shuts the program down in order and returns its whole log.
func (d *Daemon) Terminate() string {
	d.t.Helper()
	d.Signal(syscall.SIGTERM)
	d.AwaitEnd()
	if !d.command.ProcessState.Success() {
		d.t.Errorf("the program exits with %d after SIGTERM, want 0", d.ExitCode())
	}
	return d.log.String()
}

// variant is the difference of a build from the program that ships.
type variant struct {
	failpoints bool
	raced      bool
	mutant     string // of Mutants; empty for none
}

var builds sync.Map // variant → func() (path string, err error)

// path builds each variant once in the life of this test binary.
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
	arguments := append([]string{"build", "-ldflags", "-s -w", "-o", path}, coverage()...) // as it is released
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

// coverage has the program measured like the tests that run it. It reports to
// GOCOVERDIR when it ends, and for that main is measured too.
func coverage() []string {
	if testing.CoverMode() == "" {
		return nil
	}
	return []string{"-covermode=" + testing.CoverMode(), "-coverpkg=./cmd/drainer,./drainer/...,./dispatch/...,./compensations/..."}
}

// root is the module's folder, wherever the test runs.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}
