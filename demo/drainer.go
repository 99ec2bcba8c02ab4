package demo

import (
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"

	"github.com/agentoutbox/drainer/internal/child"
)

// drainer is one process.
type drainer struct {
	worker  string // under which it joined
	process *child.Process
	log     *os.File
	asked   atomic.Bool // to end
}

// spawn starts a process; unasked hears of an end that nobody asked for.
func spawn(command *exec.Cmd, log *os.File, unasked func(error)) (*drainer, error) {
	process, err := child.Start(command, syscall.SIGKILL)
	if err != nil {
		_ = log.Close()
		return nil, err
	}
	d := &drainer{log: log, process: process}
	go func() {
		_ = process.Failure()
		_ = log.Close()
		if !d.asked.Load() {
			unasked(fmt.Errorf("drainer %d ended by itself: %s", process.Pid(), command.ProcessState))
		}
	}()
	return d, nil
}

func (d *drainer) freeze() error { return d.process.Signal(syscall.SIGSTOP) }
func (d *drainer) thaw() error   { return d.process.Signal(syscall.SIGCONT) }

// kill gives the process no chance to do anything more.
func (d *drainer) kill() error {
	d.asked.Store(true)
	err := d.process.Signal(syscall.SIGKILL)
	<-d.process.Ended()
	return err
}

// stop shuts the process down, and fails if it does not end well.
func (d *drainer) stop() error {
	if d.asked.Swap(true) {
		return nil
	}
	if err := d.process.End(syscall.SIGTERM, stopTimeout); err != nil {
		return err
	}
	if err := d.process.Failure(); err != nil {
		return fmt.Errorf("drainer %d did not shut down well: %w", d.process.Pid(), err)
	}
	return nil
}
