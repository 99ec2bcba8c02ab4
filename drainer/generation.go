package drainer

import (
	"context"
	"sync"
)

// generation is the time of one configuration's providers. One session after
// the other serves them, each until it loses its lease, and the last one until
// the next generation takes over or the daemon stops. Their adapters are closed
// at the generation's end.
type generation struct {
	providers []Provider
	daemon    *Daemon
	takeOver  func()          // once the first session has joined
	begun     chan bool       // then true; at the end false
	retired   context.Context // ends with the generation's turn to claim, and with the daemon's
	retire    context.CancelFunc
	ended     chan struct{}
}

func newGeneration(stop context.Context, daemon *Daemon, providers []Provider, takeOver func()) *generation {
	g := &generation{providers: providers, daemon: daemon, begun: make(chan bool, 2), ended: make(chan struct{})}
	g.takeOver = sync.OnceFunc(func() {
		takeOver()
		g.begun <- true
	})
	g.retired, g.retire = context.WithCancel(stop)
	return g
}

// run returns nil once it was retired and all that it claimed is settled.
func (g *generation) run(stop context.Context) error {
	defer close(g.ended)
	defer g.retire()
	defer func() { g.begun <- false }()
	last, err := g.serve(stop)
	closeAdapters(g.providers, last.busyWith, g.daemon.log)
	if stop.Err() == nil {
		g.daemon.observer.forget(g.providers)
	}
	return err
}

func (g *generation) serve(stop context.Context) (last *session, err error) {
	for {
		session := newSession(g.daemon, g.providers)
		if !session.join(g.retired) {
			return session, nil
		}
		err := g.runJoined(stop, session)
		if leaseLoss(err) == nil || stop.Err() != nil {
			return session, err
		}
		g.daemon.log.Error("lease lost", "worker", session.worker, "error", err)
		if g.retired.Err() != nil {
			return session, nil
		}
	}
}

// runJoined takes over before its first claim: of all generations one claims,
// and only when that one is there, the one before it stops.
func (g *generation) runJoined(stop context.Context, session *session) error {
	roster := &g.daemon.roster
	roster.enter(session)
	defer roster.exit(session)
	g.takeOver()
	return session.run(stop, g.retired)
}
