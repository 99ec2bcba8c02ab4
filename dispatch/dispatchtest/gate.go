package dispatchtest

import (
	"context"
	"slices"
	"sync"
	"time"
)

// gate holds hanging requests. Its zero value is closed.
type gate struct {
	built, opened sync.Once
	way           chan struct{} // closed once the gate is open
}

func (g *gate) passage() chan struct{} {
	g.built.Do(func() { g.way = make(chan struct{}) })
	return g.way
}

func (g *gate) open() { g.opened.Do(func() { close(g.passage()) }) }

// Release lets every hanging request go on, and every later one pass. It may
// be called more than once.
func (p *SimulatedProvider) Release() { p.hanging.open() }

// pause waits if the fault is one of those named. A client that hangs up does
// not end a hang, as it would not stop a real provider's work; but it need
// not wait for a slow reply.
func (p *SimulatedProvider) pause(ctx context.Context, fault Fault, among ...Fault) {
	switch {
	case !slices.Contains(among, fault):
	case fault == Slow:
		p.dawdle(ctx)
	default:
		<-p.hanging.passage()
	}
}

func (p *SimulatedProvider) dawdle(ctx context.Context) {
	timer := time.NewTimer(orASecond(p.SlowFor))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
