package mcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/internal/child"
)

const (
	lastWordsWithin = time.Second     // how long the output of an ended child may still arrive
	leaveWithin     = 2 * time.Second // after the child's input was closed, and again after SIGTERM
)

// program is a server that runs as a child.
type program struct {
	command   []string
	env       map[string]string // the child gets these and PATH, nothing else of the daemon's
	directory string
	limit     int64
	restarts  restarts

	last     *life // nil before the first; replaced by Connect, which runs once at a time
	children sync.WaitGroup
}

// life is the life of one child.
type life struct {
	isOver  atomic.Bool       // the child ended, or cut a pipe, before drainer ended it
	gone    chan struct{}     // closed when the child has ended and problem is known
	problem *dispatch.Problem // may be read once gone is closed
}

// explain adds to a result how the child ended, if the child ended by itself.
func (l *life) explain(ctx context.Context, result dispatch.Result) dispatch.Result {
	if problem := l.obituary(ctx); problem != nil {
		result.Problem = problem
	}
	return result
}

// obituary returns how the child ended. It waits a moment for the end of a child that has closed a pipe. It returns
// nil for a child that runs or was ended by drainer. l may be nil.
func (l *life) obituary(ctx context.Context) *dispatch.Problem {
	if l == nil || !l.isOver.Load() {
		return nil
	}
	timer := time.NewTimer(2 * lastWordsWithin)
	defer timer.Stop()
	select {
	case <-l.gone:
		return l.problem
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// startError is the error of a child that could not be started.
type startError struct {
	class   string
	problem *dispatch.Problem
}

func (e *startError) Error() string { return "starting the server: " + e.class }

// Connect starts the child once the previous child is gone. It implements the library's Transport.
func (p *program) Connect(ctx context.Context) (sdk.Connection, error) {
	if err := p.awaitPrevious(ctx); err != nil {
		return nil, err
	}
	if err := p.restarts.await(ctx); err != nil {
		return nil, err
	}
	theirs, ours, err := pipes()
	if err != nil {
		return nil, notStarted(err)
	}
	command := exec.Command(p.command[0], p.command[1:]...)
	command.Env = []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range p.env {
		command.Env = append(command.Env, name+"="+value)
	}
	command.Dir = p.directory
	command.Stdin, command.Stdout, command.Stderr = theirs.in, theirs.out, theirs.err
	process, err := child.Start(command, syscall.SIGKILL)
	theirs.close()
	if err != nil {
		ours.close()
		p.restarts.ended(0)
		return nil, notStarted(err)
	}
	l := &life{gone: make(chan struct{})}
	connection, err := newPipe(ours, p.limit, l, func() { p.children.Go(func() { end(process) }) })
	if err != nil {
		ours.close()
		return nil, errors.Join(err, process.End(syscall.SIGKILL, leaveWithin))
	}
	p.last = l
	p.children.Go(func() {
		defer close(l.gone)
		l.problem = p.watch(process, ours)
	})
	return connection, nil
}

func notStarted(err error) error {
	return &startError{"child_start", &dispatch.Problem{Title: "the server cannot be started", Detail: err.Error()}}
}

func (p *program) awaitPrevious(ctx context.Context) error {
	if p.last == nil {
		return nil
	}
	select {
	case <-p.last.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watch waits for the child's end. The readers get the child's last output, but no more after lastWordsWithin: a
// grandchild may hold the pipes open forever. watch keeps only the last line of stderr, which may contain payloads.
func (p *program) watch(process *child.Process, ours ends) *dispatch.Problem {
	defer func() { _ = ours.err.Close() }()
	started := time.Now()
	words := make(chan string, 1)
	go func() { words <- evidence.Relay(ours.err, io.Discard, "") }()
	<-process.Ended()
	p.restarts.ended(time.Since(started))
	deadline := time.Now().Add(lastWordsWithin)
	_ = ours.out.SetReadDeadline(deadline) // fails if it is already closed
	_ = ours.err.SetReadDeadline(deadline)
	how := "exit status 0"
	if failure := process.Failure(); failure != nil {
		how = failure.Error()
	}
	return &dispatch.Problem{Title: "the server ended: " + how, Detail: evidence.Without(<-words, p.env)}
}

// end ends the child as the protocol demands: its input is closed already, then the signals follow.
func end(process *child.Process) {
	select {
	case <-process.Ended():
	case <-time.After(leaveWithin):
		_ = process.End(syscall.SIGTERM, leaveWithin) // the child is gone even after an error
	}
}

// wait returns when no child is left.
func (p *program) wait() { p.children.Wait() }

// ends are one side's ends of the pipes: in is the child's input.
type ends struct{ in, out, err *os.File }

func (e ends) close() {
	_ = e.in.Close() // Close of a nil file only returns an error
	_ = e.out.Close()
	_ = e.err.Close()
}

func pipes() (theirs, ours ends, err error) {
	var failures [3]error
	theirs.in, ours.in, failures[0] = os.Pipe()
	ours.out, theirs.out, failures[1] = os.Pipe()
	ours.err, theirs.err, failures[2] = os.Pipe()
	if err = errors.Join(failures[:]...); err != nil {
		theirs.close()
		ours.close()
	}
	return theirs, ours, err
}

const (
	firstRest = 100 * time.Millisecond
	longRest  = 30 * time.Second
	// steady is how long a child must live before its end no longer counts as a failed start.
	steady = 10 * time.Second
)

// restarts delays the starts of a child that ends again and again. The first restart is not delayed.
type restarts struct {
	within time.Duration // a longer wait is refused at once

	mu    sync.Mutex
	rest  time.Duration
	start time.Time // the earliest time of the next start
}

// await waits until the child may be started. If that takes longer than within, it returns an error at once.
func (r *restarts) await(ctx context.Context) error {
	r.mu.Lock()
	rest := time.Until(r.start)
	r.mu.Unlock()
	if rest <= 0 {
		return nil
	}
	if rest > r.within {
		return &startError{class: "child_backoff"}
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ended records that a child has ended, and how long it lived.
func (r *restarts) ended(lived time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case lived >= steady:
		r.rest = 0
	default:
		r.start = time.Now().Add(r.rest)
		r.rest = min(max(2*r.rest, firstRest), longRest)
	}
}

// pipe exchanges messages with a child. The library reads. pipe writes itself, because it must know how much was
// written, and must stop if the child does not read.
type pipe struct {
	sdk.Connection // only for reading
	input          *os.File
	life           *life
	turn           chan struct{} // held while writing
	onClose        func()
}

// newPipe makes a pipe that calls onClose once, after the child's input was closed.
func newPipe(ours ends, limit int64, l *life, onClose func()) (*pipe, error) {
	transport := &sdk.IOTransport{
		Reader:        &lineReader{file: ours.out, limit: limit, life: l},
		Writer:        ours.in,
		MaxLineLength: -1, // no limit: lineReader has one, and its error can be distinguished
	}
	connection, err := transport.Connect(context.Background())
	if err != nil {
		return nil, err
	}
	return &pipe{Connection: connection, input: ours.in, life: l, turn: make(chan struct{}, 1), onClose: sync.OnceFunc(onClose)}, nil
}

// Close closes both ends. It leaves the wait for the child's end to onClose, because the library holds a lock
// meanwhile.
func (p *pipe) Close() error {
	err := p.Connection.Close()
	p.onClose()
	return err
}

// Write writes a message as one line.
func (p *pipe) Write(ctx context.Context, message jsonrpc.Message) error {
	line, err := jsonrpc.EncodeMessage(message)
	if err != nil {
		return err
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c := writtenCall(ctx)
	if c != nil && !c.begin() {
		return errSecondCall
	}
	written, err := p.write(ctx, append(line, '\n'))
	if errors.Is(err, syscall.EPIPE) {
		p.life.isOver.Store(true)
	}
	if err != nil && c != nil {
		c.fail(written > 0, writeClass(ctx, written, err))
	}
	if err != nil && written > 0 {
		_ = p.Close() // part of a line was written, and the next message would be read as its rest
	}
	return err
}

// write gives up when ctx ends. It sets a write deadline for that, and removes the deadline before the next write.
func (p *pipe) write(ctx context.Context, line []byte) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(hurried)
		_ = p.input.SetWriteDeadline(time.Now())
	})
	defer func() {
		if !stop() {
			<-hurried
			_ = p.input.SetWriteDeadline(time.Time{})
		}
	}()
	return p.input.Write(line)
}

func writeClass(ctx context.Context, written int, err error) string {
	switch {
	case ctx.Err() != nil:
		return evidence.Context(ctx)
	case written == 0:
		return "child_gone"
	}
	return evidence.Sent(ctx, err)
}

// lineReader fails if a line is longer than limit.
type lineReader struct {
	file  *os.File
	limit int64
	life  *life
	line  int64
}

func (r *lineReader) Read(into []byte) (int, error) {
	n, err := r.file.Read(into)
	if last := bytes.LastIndexByte(into[:n], '\n'); last >= 0 {
		r.line = int64(n - last - 1)
	} else if r.line += int64(n); r.line > r.limit {
		return 0, errTooLarge
	}
	if os.IsTimeout(err) {
		err = io.EOF // the child has ended
	}
	if errors.Is(err, io.EOF) {
		r.life.isOver.Store(true)
	}
	return n, err
}

func (r *lineReader) Close() error { return r.file.Close() }
