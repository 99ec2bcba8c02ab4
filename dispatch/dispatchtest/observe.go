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

// bench holds a fresh adapter, a fresh counterpart, and the dispatches between them.
type bench struct {
	Counterpart
	subject Subject
	adapter dispatch.Adapter
	network *network
	owner   owner
	run     string // differs from every other bench
	intents atomic.Int64

	mu     sync.Mutex
	events []Seen
}

// set makes a bench without its adapter.
func (s Subject) set(t *testing.T) *bench {
	return &bench{Counterpart: s.Start(t), subject: s, network: &network{}, owner: newOwner(), run: uuid.NewString()}
}

// build makes the adapter. It returns an error if New takes too long.
func (b *bench) build(timeout time.Duration) error {
	return bounded(b.owner, "New", b.subject.patience(), func() (err error) {
		b.adapter, err = b.subject.Kind.New(b.subject.spec(b.Counterpart, timeout, dispatch.NewNetwork(b.network.dial, b.TLS)))
		return err
	})
}

// bounded runs a call other than a dispatch, with the same limit and owner.
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

// intent returns a request with a new tuple.
func (b *bench) intent() dispatch.Request {
	tuple := dispatch.Tuple{
		AgentRunID:    "conformance-" + b.run,
		StepID:        "step-" + strconv.FormatInt(b.intents.Add(1), 10),
		ToolName:      provider + "/" + operation,
		BusinessScope: "conformance",
	}
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Attempt: 1, Payload: b.Payload, Headers: traceContext()}
}

// traceContext returns headers that an agent may have sent, in the form of W3C Trace Context.
func traceContext() map[string]string {
	return map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
}

func (b *bench) intentWith(payload json.RawMessage) dispatch.Request {
	request := b.intent()
	request.Payload = payload
	return request
}

// dispatch makes one attempt within the patience of the subject.
func (b *bench) dispatch(ctx context.Context, request dispatch.Request) Seen {
	ctx, cancel := context.WithTimeout(ctx, b.subject.patience())
	defer cancel()
	return b.dispatchUntil(ctx, request)
}

// dispatchUntil makes one attempt that must end soon after ctx does.
func (b *bench) dispatchUntil(ctx context.Context, request dispatch.Request) Seen {
	seen := observe(ctx, b.adapter, request, b.owner, b.subject.patience()+b.subject.soon())
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, seen)
	return seen
}

// seen returns all dispatches so far.
func (b *bench) seen() []Seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.events[:len(b.events):len(b.events)]
}

// warm makes the adapter connect to its counterpart, so that the next situation affects a request and not a
// handshake.
func (b *bench) warm() Check {
	seen := b.dispatch(context.Background(), b.intent())
	return found("first dispatch", seen.ended(dispatch.Completed), seen.String(), "completed", "the counterpart must accept its own Payload, and the adapter take its answer for a success")
}

// close ends the adapter as the engine does: once, after the last dispatch.
func (b *bench) close() error {
	closer, ok := b.adapter.(io.Closer)
	if !ok {
		return nil
	}
	return bounded(b.owner, "Close", b.subject.patience(), closer.Close)
}

// Seen is one dispatch, as its caller saw it.
type Seen struct {
	Result  dispatch.Result
	Took    time.Duration
	Hung    bool   // it had not returned when patience ended; then nothing else is known
	Panic   string // the value of its panic; "" for none
	Changed bool   // the adapter changed the request
	Request dispatch.Request
}

// observe dispatches and waits no longer than patience. Goroutines that the adapter starts belong to owner.
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

// ended reports whether the dispatch ended with one of these outcomes.
func (s Seen) ended(as ...dispatch.Outcome) bool {
	return !s.Hung && s.Panic == "" && slices.Contains(as, s.Result.Outcome)
}

// String describes the end of a dispatch in a few words: "ambiguous, timeout".
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

// network counts the connections that are made through it.
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

// SyscallConn lets adapters check the socket, as they can in production.
func (c *trackedConn) SyscallConn() (syscall.RawConn, error) {
	return c.Conn.(syscall.Conn).SyscallConn()
}

// owner is a mark of goroutines. A goroutine inherits the mark of the goroutine that started it, so an adapter's
// goroutines can be distinguished from those of its counterpart and of other tests.
type owner string

const ownerLabel = "drainer_conformance"

var owners atomic.Int64

func newOwner() owner { return owner(strconv.FormatInt(owners.Add(1), 10)) }

func (o owner) do(ctx context.Context, run func(context.Context)) {
	pprof.Do(ctx, pprof.Labels(ownerLabel, string(o)), run)
}

// awaitNone waits until the owner has no goroutine left. When patience ends, it returns the goroutines that remain.
func (o owner) awaitNone(patience time.Duration) []string {
	var left []string
	await(patience, func() bool {
		left = o.goroutines()
		return len(left) == 0
	})
	return left
}

// goroutines names the owner's goroutines by the functions that they began with. Only the profile of runtime/pprof
// shows labels.
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

// multitude returns how many goroutines a record stands for. A record begins "3 @ 0x…".
func multitude(record string) string {
	before, _, _ := strings.Cut(record, " @ ")
	return before[strings.LastIndex(before, "\n")+1:]
}

// origin returns the outermost frame of a record, which comes last: "#\t0x4dc104\tpackage.function+0x64\tfile:line".
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

// await checks the condition until it holds or patience ends. It returns whether it held.
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
