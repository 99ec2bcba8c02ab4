package program

import (
	"bufio"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
)

// Daemon is `drainer run` in a process of its own.
type Daemon struct {
	Base  string        // of its HTTP server
	Ended chan struct{} // closed when the process is gone
	Lines chan string   // of its log that nobody read so far; closed at its end

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
	d.Base = "http://" + regexp.MustCompile(`"address":"([^"]+)"`).FindStringSubmatch(d.log.String())[1]
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
	})
	return d
}

// PID is the process's id.
func (d *Daemon) PID() int { return d.command.Process.Pid }

// Log is what WaitFor and Terminate read so far.
func (d *Daemon) Log() string { return d.log.String() }

// ExitCode is -1 for a process that a signal ended. Ended must be closed.
func (d *Daemon) ExitCode() int { return d.command.ProcessState.ExitCode() }

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
