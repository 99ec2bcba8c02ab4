// Package child starts processes that do not outlive this one.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Process is a started child.
type Process struct {
	command *exec.Cmd
	group   *group // nil where only the process itself is meant
	ended   chan struct{}
	failure error // read after ended
}

// Start starts the command apart from the terminal's process group, so that
// Ctrl-C reaches only the parent. Where the system can, the child gets the
// farewell when the parent dies, however it dies.
//
// Linux takes the death of the thread that started a process for its parent's,
// so the process gets a thread of its own that lives as long.
func Start(command *exec.Cmd, farewell syscall.Signal) (*Process, error) {
	return start(&Process{command: command}, farewell)
}

// StartGroup is Start for a process that may start others: signals go to all
// of them that stay in its process group, and those left when the process
// ends are killed. The farewell reaches the process alone.
func StartGroup(command *exec.Cmd, farewell syscall.Signal) (*Process, error) {
	return start(&Process{command: command, group: &group{}}, farewell)
}

func start(p *Process, farewell syscall.Signal) (*Process, error) {
	command := p.command
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Setpgid = true
	endWithParent(command.SysProcAttr, farewell)
	p.ended = make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer close(p.ended)
		err := command.Start()
		started <- err
		if err == nil {
			p.failure = p.wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Pid is the process id.
func (p *Process) Pid() int { return p.command.Process.Pid }

// Ended is closed when the process is gone and has been waited for.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Failure is how the process ended: nil for exit code 0. It waits for the end.
func (p *Process) Failure() error {
	<-p.ended
	return p.failure
}

func (p *Process) wait() error {
	if p.group != nil {
		return p.group.wait(p.command)
	}
	return p.command.Wait()
}

// Signal sends a signal; a process that is gone needs none.
func (p *Process) Signal(signal syscall.Signal) error {
	if p.group != nil {
		return p.group.signal(p.Pid(), signal)
	}
	if err := p.command.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %s to process %d: %w", signal, p.Pid(), err)
	}
	return nil
}

// End sends the signal, waits, and after the patience kills, which is an error.
func (p *Process) End(signal syscall.Signal, patience time.Duration) error {
	if err := p.Signal(signal); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(patience):
	}
	err := p.Signal(syscall.SIGKILL)
	<-p.ended
	return errors.Join(fmt.Errorf("process %d was still there %s after %s, so it was killed", p.Pid(), patience, signal), err)
}

// group keeps signals from a process group whose number may belong to others
// by now: it is the leader's own until the leader has been waited for.
type group struct {
	mu     sync.Mutex
	waited bool
}

func (g *group) signal(leader int, signal syscall.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waited {
		return nil
	}
	if err := syscall.Kill(-leader, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %s to process group %d: %w", signal, leader, err)
	}
	return nil
}

// wait kills what the leader leaves behind.
func (g *group) wait(leader *exec.Cmd) error {
	if awaitExit(leader.Process.Pid) {
		_ = g.signal(leader.Process.Pid, syscall.SIGKILL)
		g.retire()
		return leader.Wait()
	}
	defer g.retire()
	return leader.Wait()
}

func (g *group) retire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waited = true
}
