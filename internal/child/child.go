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
	group   *group // nil if signals go to the process only
	ended   chan struct{}
	failure error // read only after ended is closed
}

// Start starts the command in a process group of its own, so that Ctrl-C in a terminal reaches only the parent. On
// Linux the child gets the farewell signal when the parent dies, even by SIGKILL.
//
// Linux treats the death of the thread that started a process as the death of its parent. So the process is
// started from a thread of its own, which lives until the process has ended.
func Start(command *exec.Cmd, farewell syscall.Signal) (*Process, error) {
	return start(&Process{command: command}, farewell)
}

// StartGroup is Start for a process that may start others. Signals go to all members of its process group, and
// members that remain when the process ends are killed. The farewell reaches only the process itself.
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

// Pid returns the process id.
func (p *Process) Pid() int { return p.command.Process.Pid }

// Ended returns a channel that is closed when the process has ended and was waited for.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Failure waits for the end of the process and returns its error: nil for exit code 0.
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

// Signal sends a signal. It does nothing if the process has ended.
func (p *Process) Signal(signal syscall.Signal) error {
	if p.group != nil {
		return p.group.signal(p.Pid(), signal)
	}
	if err := p.command.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %s to process %d: %w", signal, p.Pid(), err)
	}
	return nil
}

// End sends the signal and waits. If the process does not end within the patience, End kills it and returns an
// error.
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

// group sends no signal to a process group whose number may have been reused: the number is the leader's until the
// leader has been waited for.
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

// wait kills the members that the leader leaves behind.
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
