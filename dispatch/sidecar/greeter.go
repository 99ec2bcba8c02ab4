package sidecar

import (
	"context"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch/internal/failure"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

const helloTimeout = 5 * time.Second

// greeter knows the sidecar's hello. It asks when the first request comes, and
// again after one that was not understood; whoever comes meanwhile waits for
// the same answer.
type greeter struct {
	ask    func(context.Context) (protocol.Hello, string)
	ctx    context.Context // ends with the adapter
	cancel context.CancelFunc
	asking sync.WaitGroup

	mu      sync.Mutex
	current *greeting // nil where nobody has asked
}

type greeting struct {
	answered chan struct{}
	hello    protocol.Hello // read after answered
	class    string         // why there is no hello
}

func newGreeter(ask func(context.Context) (protocol.Hello, string)) *greeter {
	ctx, cancel := context.WithCancel(context.Background())
	return &greeter{ask: ask, ctx: ctx, cancel: cancel}
}

func (g *greeter) wait(ctx context.Context) (*greeting, string) {
	greeting := g.greeting()
	select {
	case <-greeting.answered:
		return greeting, greeting.class
	case <-ctx.Done():
		return nil, failure.Context(ctx)
	}
}

func (g *greeter) greeting() *greeting {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.current == nil {
		asked := &greeting{answered: make(chan struct{})}
		g.current = asked
		g.asking.Go(func() { g.greet(asked) })
	}
	return g.current
}

func (g *greeter) greet(asked *greeting) {
	ctx, cancel := context.WithTimeout(g.ctx, helloTimeout)
	defer cancel()
	asked.hello, asked.class = g.ask(ctx)
	if asked.class != "" {
		g.forget(asked)
	}
	close(asked.answered)
}

// forget asks anew when the next request comes.
func (g *greeter) forget(asked *greeting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.current == asked {
		g.current = nil
	}
}

func (g *greeter) close() {
	g.cancel()
	g.asking.Wait()
}
