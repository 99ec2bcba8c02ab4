package dispatchtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agentoutbox/drainer/dispatch"
)

// bench is a fresh adapter before a fresh counterpart, and the memory of what
// happened between them.
type bench struct {
	Counterpart
	subject Subject
	adapter dispatch.Adapter
	network *network
	owner   owner
	run     string // unlike that of any other bench
	intents atomic.Int64

	mu     sync.Mutex
	events []Seen
}

// set prepares a bench without its adapter.
func (s Subject) set(t *testing.T) *bench {
	return &bench{Counterpart: s.Start(t), subject: s, network: &network{}, owner: newOwner(), run: uuid.NewString()}
}

// build makes the adapter, which may take no longer than it should.
func (b *bench) build(timeout time.Duration) error {
	return bounded(b.owner, "New", b.subject.patience(), func() (err error) {
		b.adapter, err = b.subject.Kind.New(b.subject.spec(b.Counterpart, timeout, dispatch.NewNetwork(b.network.dial, b.TLS)))
		return err
	})
}

// bounded runs what is not a dispatch under the same conditions.
func bounded(owner owner, name string, patience time.Duration, run func() error) error {
	ended := make(chan error, 1)
	go owner.do(context.Background(), func(context.Context) {
		defer func() {
			if cause := recover(); cause != nil {
				ended <- fmt.Errorf("%s panicked", name)
			}
		}()
		ended <- run()
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return fmt.Errorf("%s did not return within %s", name, patience)
	}
}

// intent is a request with a tuple of its own.
func (b *bench) intent() dispatch.Request {
	tuple := dispatch.Tuple{
		AgentRunID:    "conformance-" + b.run,
		StepID:        "step-" + strconv.FormatInt(b.intents.Add(1), 10),
		ToolName:      provider + "/" + operation,
		BusinessScope: "conformance",
	}
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Attempt: 1, Payload: b.Payload, Headers: traceContext()}
}

// traceContext holds headers that an agent may have sent along, in the form of
// W3C Trace Context.
func traceContext() map[string]string {
	return map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
}

func (b *bench) intentWith(payload json.RawMessage) dispatch.Request {
	request := b.intent()
	request.Payload = payload
	return request
}

// dispatch makes one attempt, within patience.
func (b *bench) dispatch(ctx context.Context, request dispatch.Request) Seen {
	ctx, cancel := context.WithTimeout(ctx, b.subject.patience())
	defer cancel()
	return b.dispatchUntil(ctx, request)
}

// dispatchUntil makes one attempt that ends soon after ctx does.
func (b *bench) dispatchUntil(ctx context.Context, request dispatch.Request) Seen {
	seen := observe(ctx, b.adapter, request, b.owner, b.subject.patience()+b.subject.soon())
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, seen)
	return seen
}

// seen is every dispatch so far.
func (b *bench) seen() []Seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.events[:len(b.events):len(b.events)]
}

// warm makes sure that the adapter has reached its counterpart, so that what
// happens next happens to a request and not to a handshake.
func (b *bench) warm() Check {
	seen := b.dispatch(context.Background(), b.intent())
	return found("first dispatch", seen.ended(dispatch.Completed), seen.String(), "completed", "the counterpart must accept its own Payload, and the adapter take its answer for a success")
}

// close ends the adapter as the engine would: once, after the last dispatch.
func (b *bench) close() error {
	closer, ok := b.adapter.(io.Closer)
	if !ok {
		return nil
	}
	return bounded(b.owner, "Close", b.subject.patience(), closer.Close)
}

// Seen is one dispatch as its caller saw it.
type Seen struct {
	Result  dispatch.Result
	Took    time.Duration
	Hung    bool   // it had not returned when patience ended; nothing else is known
	Panic   string // what it panicked with; empty if it did not
	Changed bool   // the request was not what it had been
	Request dispatch.Request
}

// observe dispatches and waits no longer than patience. What the adapter
// starts belongs to owner.
func observe(ctx context.Context, adapter dispatch.Adapter, request dispatch.Request, owner owner, patience time.Duration) Seen {
	before := copied(request)
	ended := make(chan Seen, 1)
	start := time.Now()
	go owner.do(ctx, func(ctx context.Context) {
		seen := Seen{Request: before}
		defer func() {
			if cause := recover(); cause != nil {
				seen.Panic = fmt.Sprint(cause)
			}
			seen.Took, seen.Changed = time.Since(start), !same(request, before)
			ended <- seen
		}()
		seen.Result = adapter.Dispatch(ctx, request)
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case seen := <-ended:
		return seen
	case <-timer.C:
		return Seen{Request: before, Took: patience, Hung: true}
	}
}

func copied(request dispatch.Request) dispatch.Request {
	request.Payload = bytes.Clone(request.Payload)
	request.Headers = maps.Clone(request.Headers)
	return request
}

func same(a, b dispatch.Request) bool {
	return bytes.Equal(a.Payload, b.Payload) && maps.Equal(a.Headers, b.Headers)
}

// ended reports whether it ended as one of those.
func (s Seen) ended(as ...dispatch.Outcome) bool {
	return !s.Hung && s.Panic == "" && slices.Contains(as, s.Result.Outcome)
}

// String is the end of a dispatch in a few words: "ambiguous, timeout".
func (s Seen) String() string {
	switch {
	case s.Hung:
		return fmt.Sprintf("no return within %s", s.Took.Round(time.Millisecond))
	case s.Panic != "":
		return "a panic"
	case s.Result.ErrorClass != "":
		return string(s.Result.Outcome) + ", " + s.Result.ErrorClass
	case s.Result.Replayed:
		return string(s.Result.Outcome) + ", replayed"
	}
	return string(s.Result.Outcome)
}

// network is a way out that knows what went through it.
type network struct {
	forbidden atomic.Bool
	dials     atomic.Int64
	open      atomic.Int64
}

func (n *network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.dials.Add(1)
	if n.forbidden.Load() {
		return nil, dispatch.ErrEgressRefused
	}
	conn, err := dispatch.PlainDialer().DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	n.open.Add(1)
	return &trackedConn{Conn: conn, closed: sync.OnceFunc(func() { n.open.Add(-1) })}, nil
}

// trackedConn reports its close to its network.
type trackedConn struct {
	net.Conn
	closed func()
}

func (c *trackedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

// SyscallConn lets adapters look at the socket, as they can in production.
func (c *trackedConn) SyscallConn() (syscall.RawConn, error) {
	return c.Conn.(syscall.Conn).SyscallConn()
}

// owner marks goroutines by whom they belong to. A goroutine inherits the mark
// of the one that started it, so an adapter's goroutines can be distinguished
// from those of its counterpart and of other tests.
type owner string

const ownerLabel = "drainer_conformance"

var owners atomic.Int64

func newOwner() owner { return owner(strconv.FormatInt(owners.Add(1), 10)) }

func (o owner) do(ctx context.Context, run func(context.Context)) {
	pprof.Do(ctx, pprof.Labels(ownerLabel, string(o)), run)
}

// awaitNone waits until no goroutine of the owner is left, or returns what the
// others are at when patience ends.
func (o owner) awaitNone(patience time.Duration) []string {
	var left []string
	await(patience, func() bool {
		left = o.goroutines()
		return len(left) == 0
	})
	return left
}

// goroutines names the owner's by the functions that they began with. The
// profile of runtime/pprof is the one place that shows labels.
func (o owner) goroutines() []string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return []string{err.Error()}
	}
	mark := fmt.Sprintf("%q:%q", ownerLabel, string(o))
	var found []string
	for record := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(record, mark) {
			found = append(found, multitude(record)+" × "+origin(record))
		}
	}
	return found
}

// multitude is how many goroutines are at the same: a record begins "3 @ 0x…".
func multitude(record string) string {
	before, _, _ := strings.Cut(record, " @ ")
	return before[strings.LastIndex(before, "\n")+1:]
}

// origin is the outermost frame of a record, which stands last:
// "#\t0x4dc104\tpackage.function+0x64\tfile:line".
func origin(record string) string {
	lines := strings.Split(strings.TrimSpace(record), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(fields) < 3 {
		return "unknown"
	}
	name, _, _ := strings.Cut(fields[2], "+0x")
	return name
}

const glance = 2 * time.Millisecond

// await checks until the condition holds or patience ends. It returns whether it held.
func await(patience time.Duration, holds func() bool) bool {
	if holds() {
		return true
	}
	end := time.NewTimer(patience)
	defer end.Stop()
	ticker := time.NewTicker(glance)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if holds() {
				return true
			}
		case <-end.C:
			return holds()
		}
	}
}
