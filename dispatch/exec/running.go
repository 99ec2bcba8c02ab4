package exec

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
	"github.com/agentoutbox/drainer/internal/child"
)

// patience is how long a child may take over what it owes.
type patience struct {
	stalled time.Duration // with its stdin full
	silent  time.Duration // without a word after the deadline of a request that it left unanswered
	leaving time.Duration // with the end: once after its stdin ended, once after SIGTERM
	drained time.Duration // what others hold open after the child's end is read no longer
}

var usualPatience = patience{stalled: 5 * time.Second, silent: 10 * time.Second, leaving: 3 * time.Second, drained: time.Second}

// running is a child from its start to its end.
type running struct {
	hello    protocol.Hello // set before anybody else sees the child
	process  *child.Process
	inbox    *inbox
	calls    *calls
	patience patience

	greeted   chan []byte    // its first line
	outlets   []*os.File     // what is read from it; complete before bury
	following sync.WaitGroup // who reads it

	ending sync.Once
	why    string        // an error class; read after ending
	done   chan struct{} // closed when the child is gone, and nobody waits for it
}

func newRunning(process *child.Process, stdin *os.File, patience patience) *running {
	return &running{
		process:  process,
		inbox:    newInbox(stdin, patience.stalled),
		calls:    newCalls(),
		patience: patience,
		greeted:  make(chan []byte, 1),
		done:     make(chan struct{}),
	}
}

// follow reads an outlet of the child until its end.
func (c *running) follow(outlet *os.File, read func()) {
	c.outlets = append(c.outlets, outlet)
	c.following.Go(read)
}

// greet exchanges hellos.
func (c *running) greet(ctx context.Context) (protocol.Hello, string) {
	c.inbox.write(ctx, protocol.Greeting()) // who cannot be greeted says no hello
	select {
	case line := <-c.greeted:
		return protocol.ParseHello(line)
	case <-c.done:
		return protocol.Hello{}, "child_start"
	case <-ctx.Done():
		return protocol.Hello{}, "start_timeout"
	}
}

// ask sends one request and waits for its answer. A request is unsent only
// while no octet of its line is in the pipe.
func (c *running) ask(ctx context.Context, request dispatch.Request, class dispatch.Class) dispatch.Result {
	id, answers, open := c.calls.begin()
	if !open {
		return notSent(down)
	}
	line, err := protocol.Encode(ctx, id, request)
	if err != nil {
		c.calls.forget(id)
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "unrenderable_request"}
	}
	if written, problem := c.inbox.write(ctx, line); problem != "" {
		c.calls.forget(id)
		return c.unwritten(ctx, written, problem)
	}
	select {
	case answer := <-answers:
		return answer.evidence(class)
	case <-ctx.Done():
	}
	if c.calls.abandon(id) {
		c.suspect(ctx)
		return ambiguous(failure.Context(ctx))
	}
	return (<-answers).evidence(class)
}

// unwritten is the result of a line that did not leave as a whole. Whoever got
// a part of it can read no other line, and whoever takes none serves nobody.
func (c *running) unwritten(ctx context.Context, written int, class string) dispatch.Result {
	switch {
	case class == down:
		c.end(died)
	case written > 0 || ctx.Err() == nil:
		c.end(stalled)
	}
	if written > 0 {
		return ambiguous(class)
	}
	return notSent(class)
}

// suspect ends a child that leaves a request unanswered beyond its deadline
// and says nothing else either, and one that leaves too many.
func (c *running) suspect(ctx context.Context) {
	if c.calls.tooManyAbandoned() {
		c.end(hung)
		return
	}
	since, wait := time.Now(), c.patience.silent
	if deadline, bounded := ctx.Deadline(); bounded {
		wait += max(0, time.Until(deadline))
	}
	time.AfterFunc(wait, func() {
		if !c.calls.heardSince(since) {
			c.end(hung)
		}
	})
}

// listen hands out what the child says. The first thing that is not of the
// protocol ends it: what follows could be anybody's answer.
func (c *running) listen(stdout *os.File, longest int) {
	lines := protocol.Lines(stdout, longest)
	if lines.Scan() {
		c.greeted <- bytes.Clone(lines.Bytes())
	}
	for lines.Scan() {
		if !c.calls.settle(lines.Bytes()) {
			c.end("protocol")
			return
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		c.end("line_too_long")
		return
	}
	c.end(died)
}

// The error classes of what becomes of a child.
const (
	down    = "child_down" // it takes no requests
	died    = "child_died"
	hung    = "child_hung"
	stalled = "child_stalled"
)

// end takes no more requests and kills the child, for a reason that everybody
// hears who waits.
func (c *running) end(why string) {
	c.ending.Do(func() {
		c.why = why
		c.calls.close()
		_ = c.process.Signal(syscall.SIGKILL)
	})
}

// bury waits for the end. What the child had written before still counts.
func (c *running) bury() {
	<-c.process.Ended()
	c.end(died)
	c.inbox.close()
	for _, outlet := range c.outlets {
		_ = outlet.SetReadDeadline(time.Now().Add(c.patience.drained))
	}
	c.following.Wait()
	closeAll(c.outlets)
	c.calls.fail(c.why)
	close(c.done)
}

// close lets the child go: its stdin ends, then SIGTERM, then SIGKILL, which is
// an error.
func (c *running) close() error {
	c.calls.close()
	c.inbox.close()
	select {
	case <-c.process.Ended():
		return nil
	case <-time.After(c.patience.leaving):
	}
	return c.process.End(syscall.SIGTERM, c.patience.leaving)
}
