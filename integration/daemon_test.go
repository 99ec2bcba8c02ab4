package integration_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
)

// daemon is a daemon in a process of its own.
type daemon struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	paused chan struct{} // a token for every dispatch that stands at the pause point
	ended  chan struct{} // closed when the process is gone; err is set before
	err    error

	mu  sync.Mutex
	log []string
}

// start runs a daemon until the test ends or takes it down. Its log is shown
// if the test fails.
func start(t *testing.T, with setup) *daemon {
	t.Helper()
	encoded, err := with.encode()
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, cmd: exec.Command(os.Args[0]), paused: make(chan struct{}, 10_000), ended: make(chan struct{})}
	d.cmd.Env = append(os.Environ(), setupVariable+"="+encoded)
	stdout, stderr := d.pipes()
	if err := d.cmd.Start(); err != nil {
		t.Fatalf("starting a daemon: %v", err)
	}
	var readers sync.WaitGroup
	readers.Go(func() { eachLine(stdout, func(string) { d.paused <- struct{}{} }) })
	readers.Go(func() { eachLine(stderr, d.append) })
	go func() {
		readers.Wait()
		d.err = d.cmd.Wait()
		close(d.ended)
	}()
	t.Cleanup(d.cleanUp)
	return d
}

func (d *daemon) pipes() (stdout, stderr io.Reader) {
	var errs [3]error
	d.stdin, errs[0] = d.cmd.StdinPipe()
	stdout, errs[1] = d.cmd.StdoutPipe()
	stderr, errs[2] = d.cmd.StderrPipe()
	for _, err := range errs {
		if err != nil {
			d.t.Fatalf("a daemon's pipes: %v", err)
		}
	}
	return stdout, stderr
}

func eachLine(from io.Reader, do func(string)) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		do(lines.Text())
	}
}

func (d *daemon) append(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = append(d.log, line)
}

// logged counts the log lines that contain the text.
func (d *daemon) logged(text string) (count int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, line := range d.log {
		if strings.Contains(line, text) {
			count++
		}
	}
	return count
}

func (d *daemon) signal(signal syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(signal); err != nil {
		d.t.Fatalf("sending %s: %v", signal, err)
	}
}

// awaitPause returns once a dispatch stands at the pause point.
func (d *daemon) awaitPause() {
	d.t.Helper()
	select {
	case <-d.paused:
	case <-d.ended:
		d.t.Fatalf("the daemon ended before it came to the pause point: %v", d.err)
	case <-time.After(drainertest.Patience):
		d.t.Fatal("the daemon never came to the pause point")
	}
}

// resume opens the pause point for good.
func (d *daemon) resume() {
	d.t.Helper()
	if _, err := io.WriteString(d.stdin, "go\n"); err != nil {
		d.t.Fatalf("resuming the daemon: %v", err)
	}
}

// kill is kill -9; it returns once the process is gone.
func (d *daemon) kill() {
	d.t.Helper()
	d.signal(syscall.SIGKILL)
	<-d.ended
}

// terminate is a graceful shutdown and returns its exit code.
func (d *daemon) terminate() int {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	return d.exitCode()
}

func (d *daemon) exitCode() int {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(drainertest.Patience):
		d.t.Fatal("the daemon did not end")
	}
	return d.cmd.ProcessState.ExitCode()
}

func (d *daemon) cleanUp() {
	_ = d.cmd.Process.Kill() // also ends a stopped process; gone is fine
	<-d.ended
	if d.t.Failed() {
		d.t.Logf("log of daemon %d without its successes:\n%s", d.cmd.Process.Pid, strings.Join(d.troubles(), "\n"))
	}
}

func (d *daemon) troubles() (lines []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, line := range d.log {
		if !strings.Contains(line, `"status":"completed"`) {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-30):]
}
