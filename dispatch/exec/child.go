package exec

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
	"github.com/agentoutbox/drainer/internal/child"
)

// patience holds the time limits of a child.
type patience struct {
	stalled time.Duration // of a write while its stdin is full
	silent  time.Duration // of the silence after the deadline of a request that it left unanswered
	leaving time.Duration // of its end: once after its stdin was closed, once after SIGTERM
	drained time.Duration // of reading pipes that other processes hold open after its end
}

var usualPatience = patience{stalled: 5 * time.Second, silent: 10 * time.Second, leaving: 3 * time.Second, drained: time.Second}

// running is a child from its start until its end.
type running struct {
	hello    protocol.Hello // set before any other goroutine sees the child
	process  *child.Process
	inbox    *inbox
	calls    *calls
	patience patience

	greeted   chan []byte    // gets its first line
	lastWords string         // the last line of its stderr; may be read once following is done
	outlets   []*os.File     // its stdout and stderr; complete before reap is called
	following sync.WaitGroup // the readers of outlets

	ending sync.Once
	why    string        // an error class; may be read after ending
	fate   fate          // may be read after done
	done   chan struct{} // closed when the child is gone and its calls have their answers
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

// follow starts the reader of an output of the child, which reads until the output's end.
func (c *running) follow(outlet *os.File, read func()) {
	c.outlets = append(c.outlets, outlet)
	c.following.Go(read)
}

// greet exchanges hellos. It returns a fate with an error class if the child does not answer with a valid hello.
func (c *running) greet(ctx context.Context) (protocol.Hello, fate) {
	c.inbox.write(ctx, protocol.Greeting()) // a child that does not read will not say hello either
	select {
	case line := <-c.greeted:
		hello, class := protocol.ParseHello(line)
		if class == "" {
			return hello, fate{}
		}
		return hello, fate{class, &dispatch.Problem{Title: "this line of the adapter is no hello of protocol version 1", Detail: evidence.Repeated(line)}}
	case <-c.done:
		failure := c.fate
		failure.class = "child_start"
		return protocol.Hello{}, failure
	case <-ctx.Done():
		return protocol.Hello{}, fate{"start_timeout", &dispatch.Problem{Title: "the adapter said no hello within start_timeout"}}
	}
}

// Hello implements [protocol.Peer].
func (c *running) Hello() protocol.Hello { return c.hello }

// Ask implements [protocol.Peer]. A request counts as unsent only while no byte of its line is in the pipe.
func (c *running) Ask(ctx context.Context, id string, line []byte, class dispatch.Class) dispatch.Result {
	answers, open := c.calls.begin(id)
	if !open {
		return c.calls.refusal()
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
		return protocol.Ambiguous(evidence.Context(ctx))
	}
	return (<-answers).evidence(class)
}

// unwritten is the result of a line that was not written as a whole. A child that got a part of a line could not
// read the next one, and a child that reads nothing serves no request. In both cases the child is ended.
func (c *running) unwritten(ctx context.Context, written int, class string) dispatch.Result {
	switch {
	case class == down:
		c.end(died)
	case written > 0 || ctx.Err() == nil:
		c.end(stalled)
	}
	if written > 0 {
		return protocol.Ambiguous(class)
	}
	return protocol.NotSent(class)
}

// suspect ends a child that leaves too many requests unanswered. It also ends a child that, for patience.silent
// after the deadline of an unanswered request, sends nothing else either.
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

// listen delivers the child's answers to their requests. The first line outside
// the protocol ends the child: a later line could be the answer to any request.
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

// The error classes of a child's end.
const (
	down    = "child_down" // it accepts no requests
	died    = "child_died"
	hung    = "child_hung"
	stalled = "child_stalled"
)

// end accepts no more requests and kills the child. why becomes the error class of all calls under way.
func (c *running) end(why string) {
	c.ending.Do(func() {
		c.why = why
		c.calls.close()
		_ = c.process.Signal(syscall.SIGKILL)
	})
}

// reap waits for the child's end, and then ends its calls. Answers that the child wrote before its end still count.
func (c *running) reap() {
	<-c.process.Ended()
	c.end(died)
	c.inbox.close()
	for _, outlet := range c.outlets {
		_ = outlet.SetReadDeadline(time.Now().Add(c.patience.drained))
	}
	c.following.Wait()
	closeAll(c.outlets)
	c.fate = fate{class: c.why, problem: c.obituary()}
	c.calls.fail(c.fate)
	close(c.done)
}

// obituary describes how a child ended, or returns nil if drainer ended it for another reason. It is called after
// the end.
func (c *running) obituary() *dispatch.Problem {
	switch c.why {
	case died:
		how := "exit status 0"
		if failure := c.process.Failure(); failure != nil {
			how = failure.Error()
		}
		return &dispatch.Problem{Title: "the adapter ended: " + how, Detail: c.lastWords}
	case "line_too_long":
		return &dispatch.Problem{Title: "the adapter wrote a line that is longer than max_message"}
	}
	return nil
}

// close ends the child: it closes the child's stdin, then sends SIGTERM, then SIGKILL. It returns an error if
// SIGKILL was needed.
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

// inbox writes whole lines to a child's stdin, one after the other.
type inbox struct {
	stdin   *os.File
	turn    chan struct{} // holds an element while a line is written
	stalled time.Duration
}

func newInbox(stdin *os.File, stalled time.Duration) *inbox {
	return &inbox{stdin: stdin, turn: make(chan struct{}, 1), stalled: stalled}
}

// write returns the number of bytes that reached the pipe, and an error class if that is not the whole line. It
// gives up when ctx ends, or when the pipe stays full for too long, because all other requests wait behind this
// line.
func (i *inbox) write(ctx context.Context, line []byte) (written int, class string) {
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return 0, evidence.Context(ctx)
	}
	written, err := i.writeUntil(ctx, line)
	switch {
	case err == nil:
		return written, ""
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return written, down
	case ctx.Err() != nil:
		return written, evidence.Context(ctx)
	}
	return written, stalled
}

func (i *inbox) writeUntil(ctx context.Context, line []byte) (int, error) {
	if err := i.stdin.SetWriteDeadline(time.Now().Add(i.stalled)); err != nil {
		return 0, err
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = i.stdin.SetWriteDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-interrupted // otherwise the deadline could interrupt the next line
		}
	}()
	return i.stdin.Write(line)
}

func (i *inbox) close() { _ = i.stdin.Close() }

// launcher starts the children of one provider.
type launcher struct {
	provider string
	settings Settings
	patience patience
	stderr   io.Writer // stderr of drainer
}

// start returns a child that has said hello, or the reason why there is none.
func (l launcher) start(ctx context.Context) (*running, fate) {
	started, err := l.spawn()
	if err != nil {
		return nil, fate{"child_start", &dispatch.Problem{Title: "the adapter cannot be started", Detail: err.Error()}}
	}
	ctx, cancel := context.WithTimeout(ctx, l.settings.StartTimeout)
	defer cancel()
	hello, failure := started.greet(ctx)
	if failure.class != "" {
		started.end(failure.class)
		<-started.done
		if p := failure.problem; p != nil {
			p.Detail = evidence.Without(p.Detail, l.settings.Env)
		}
		return nil, failure
	}
	started.hello = hello
	return started, fate{}
}

func (l launcher) spawn() (*running, error) {
	path, err := osexec.LookPath(l.settings.Command[0])
	if err != nil {
		return nil, fmt.Errorf("looking for the program: %w", err)
	}
	command := &osexec.Cmd{Path: path, Args: l.settings.Command, Env: environment(l.settings.Env), Dir: l.settings.Directory}
	pipes, err := connect(command, l.settings.Stderr != "discard")
	if err != nil {
		return nil, err
	}
	process, err := child.StartGroup(command, syscall.SIGKILL)
	pipes.closeTheirs()
	if err != nil {
		pipes.closeOurs()
		return nil, fmt.Errorf("starting the program: %w", err)
	}
	started := newRunning(process, pipes.stdin, l.patience)
	started.follow(pipes.stdout, func() { started.listen(pipes.stdout, l.settings.MaxMessage) })
	if pipes.stderr != nil {
		started.follow(pipes.stderr, func() {
			started.lastWords = evidence.Without(evidence.Relay(pipes.stderr, l.stderr, l.provider), l.settings.Env)
		})
	}
	go started.reap()
	return started, nil
}

// pipes are both ends of a child's pipes.
type pipes struct {
	stdin, stdout, stderr *os.File // this side's ends; stderr is nil if it is discarded
	theirs                []*os.File
}

func connect(command *osexec.Cmd, withStderr bool) (*pipes, error) {
	p := &pipes{}
	var failures [3]error
	var stdin, stdout, stderr *os.File
	stdin, p.stdin, failures[0] = os.Pipe()
	p.stdout, stdout, failures[1] = os.Pipe()
	if withStderr {
		p.stderr, stderr, failures[2] = os.Pipe()
	}
	p.theirs = []*os.File{stdin, stdout, stderr}
	for _, err := range failures {
		if err != nil {
			p.closeTheirs()
			p.closeOurs()
			return nil, fmt.Errorf("making a pipe for the program: %w", err)
		}
	}
	command.Stdin, command.Stdout = stdin, stdout
	if withStderr {
		command.Stderr = stderr
	}
	return p, nil
}

func (p *pipes) closeTheirs() { closeAll(p.theirs) }
func (p *pipes) closeOurs()   { closeAll([]*os.File{p.stdin, p.stdout, p.stderr}) }

func closeAll(files []*os.File) {
	for _, file := range files {
		if file != nil {
			_ = file.Close()
		}
	}
}
