package mcp

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/internal/child"
)

const (
	lastWordsWithin = time.Second     // what a child may still have written when it ended
	leaveWithin     = 2 * time.Second // after its input was closed, and again after SIGTERM
)

// program is a server that is started as a child.
type program struct {
	command   []string
	env       []string // nothing of the daemon's but PATH
	directory string
	limit     int64
	restarts  restarts

	previous <-chan struct{} // closed when the last child is gone; nil before the first. Only Connect's, which runs once at a time
	children sync.WaitGroup
}

// startError is a child that could not be started.
type startError struct{ class string }

func (e *startError) Error() string { return "starting the server: " + e.class }

// Connect starts the child, once the one before is gone. It implements the
// library's Transport.
func (p *program) Connect(ctx context.Context) (sdk.Connection, error) {
	if err := p.awaitPrevious(ctx); err != nil {
		return nil, err
	}
	if err := p.restarts.await(ctx); err != nil {
		return nil, err
	}
	theirs, ours, err := pipes()
	if err != nil {
		return nil, &startError{"child_start"}
	}
	command := exec.Command(p.command[0], p.command[1:]...)
	command.Env = append([]string{"PATH=" + os.Getenv("PATH")}, p.env...)
	command.Dir = p.directory
	command.Stdin, command.Stdout = theirs.in, theirs.out // its stderr is nobody's: it may hold payloads
	process, err := child.Start(command, syscall.SIGKILL)
	theirs.close()
	if err != nil {
		ours.close()
		p.restarts.ended(0)
		return nil, &startError{"child_start"}
	}
	connection, err := newPipe(ours, p.limit, func() { p.children.Go(func() { end(process) }) })
	if err != nil {
		return nil, errors.Join(err, process.End(syscall.SIGKILL, leaveWithin))
	}
	gone := make(chan struct{})
	p.previous = gone
	p.children.Go(func() {
		defer close(gone)
		p.watch(process, ours)
	})
	return connection, nil
}

func (p *program) awaitPrevious(ctx context.Context) error {
	if p.previous == nil {
		return nil
	}
	select {
	case <-p.previous:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watch lets the reader have what a child wrote last, but no more: a
// grandchild may hold the pipe open for as long as it likes.
func (p *program) watch(process *child.Process, ours ends) {
	started := time.Now()
	<-process.Ended()
	p.restarts.ended(time.Since(started))
	_ = ours.out.SetReadDeadline(time.Now().Add(lastWordsWithin)) // fails where it is closed already
}

// end follows the protocol: the input is closed by now, then come the signals.
func end(process *child.Process) {
	select {
	case <-process.Ended():
	case <-time.After(leaveWithin):
		_ = process.End(syscall.SIGTERM, leaveWithin) // it is gone in any case
	}
}

// wait returns when no child is left.
func (p *program) wait() { p.children.Wait() }

// ends are one side's ends of the pipes: in is the child's input.
type ends struct{ in, out *os.File }

func (e ends) close() {
	_ = e.in.Close()
	_ = e.out.Close()
}

func pipes() (theirs, ours ends, err error) {
	theirs.in, ours.in, err = os.Pipe()
	if err != nil {
		return theirs, ours, err
	}
	ours.out, theirs.out, err = os.Pipe()
	if err != nil {
		_ = theirs.in.Close()
		_ = ours.in.Close()
	}
	return theirs, ours, err
}
