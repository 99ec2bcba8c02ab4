package demo

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// drainer is one process.
type drainer struct {
	worker  string // under which it joined
	process *os.Process
	log     *os.File
	asked   atomic.Bool   // to end
	ended   chan struct{} // closed when the process is gone
	failure error         // read after ended
}

// spawn starts a process from a thread that lives as long as the process:
// Linux takes the death of that thread for the parent's. unasked hears of an
// end that nobody asked for.
func spawn(command *exec.Cmd, log *os.File, unasked func(error)) (*drainer, error) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the parent
	endWithParent(command.SysProcAttr)
	d := &drainer{log: log, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer func() { _ = log.Close() }()
		defer close(d.ended)
		err := command.Start()
		d.process = command.Process
		started <- err
		if err != nil {
			return
		}
		d.failure = command.Wait()
		if !d.asked.Load() {
			unasked(fmt.Errorf("drainer %d ended by itself: %s", d.pid(), command.ProcessState))
		}
	}()
	return d, <-started
}

func (d *drainer) pid() int { return d.process.Pid }

func (d *drainer) freeze() error { return d.signal(syscall.SIGSTOP) }
func (d *drainer) thaw() error   { return d.signal(syscall.SIGCONT) }

// kill gives the process no chance to do anything more.
func (d *drainer) kill() error {
	d.asked.Store(true)
	err := d.signal(syscall.SIGKILL)
	<-d.ended
	return err
}

// stop shuts the process down, and fails if it does not end well.
func (d *drainer) stop() error {
	if d.asked.Swap(true) {
		return nil
	}
	if err := d.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-d.ended:
	case <-time.After(stopTimeout):
		return errors.Join(fmt.Errorf("drainer %d does not shut down within %s", d.pid(), stopTimeout), d.kill())
	}
	if d.failure != nil {
		return fmt.Errorf("drainer %d did not shut down well: %w", d.pid(), d.failure)
	}
	return nil
}

func (d *drainer) signal(signal syscall.Signal) error {
	if err := d.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %s to drainer %d: %w", signal, d.pid(), err)
	}
	return nil
}
