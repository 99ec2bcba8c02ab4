package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
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
func (s Subject) set() *bench {
	return &bench{Counterpart: s.Start(), subject: s, network: &network{}, owner: newOwner(), run: uuid.NewString()}
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

// intent is a request that nobody made before.
func (b *bench) intent() dispatch.Request {
	tuple := dispatch.Tuple{
		AgentRunID:    "conformance-" + b.run,
		StepID:        "step-" + strconv.FormatInt(b.intents.Add(1), 10),
		ToolName:      provider + "/" + operation,
		BusinessScope: "conformance",
	}
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Attempt: 1, Payload: b.Payload, Headers: traceContext()}
}

// traceContext is what an agent may have sent along, as W3C Trace Context
// writes it.
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
