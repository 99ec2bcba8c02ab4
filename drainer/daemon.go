package drainer

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Settings are the engine's own; a provider's are in [Provider].
type Settings struct {
	Worker WorkerSettings
	Once   bool // stop when nothing is due and nothing is in flight

	// SagaMoved is told, after the commit, of an agent run whose saga began or
	// whose undo ended. It must not block. nil is told nothing.
	SagaMoved func(agentRunID string)
}

// WorkerSettings time a worker's life. Lease is how long other workers wait
// without a heartbeat before they bury one; it stops sending after two thirds
// of that. ShutdownTimeout bounds the dispatches still under way at a shutdown.
type WorkerSettings struct {
	Heartbeat       time.Duration
	Lease           time.Duration
	ShutdownTimeout time.Duration
}

// Daemon drains an outbox until it is told to stop.
type Daemon struct {
	store     Store
	providers []Provider
	settings  Settings
	observer  *observer
	log       *slog.Logger
	current   atomic.Pointer[session]
}

// New registers the daemon's metrics; nothing runs before [Daemon.Run].
func New(store Store, providers []Provider, settings Settings, log *slog.Logger, metrics prometheus.Registerer) *Daemon {
	return &Daemon{
		store:     store,
		providers: providers,
		settings:  settings,
		observer:  newObserver(providers, log, metrics),
		log:       log,
	}
}

// Run drains until ctx ends, then shuts down: it claims nothing more, lets
// what is in flight finish within ShutdownTimeout, gives back what was not
// sent, and returns nil if every outcome is settled. Draining once, it returns
// ErrRowsLeft if a shut gate kept it from sending what is due.
func (d *Daemon) Run(ctx context.Context) error {
	sampling, endSampling := context.WithCancel(ctx)
	var sampler sync.WaitGroup
	sampler.Go(func() { d.observer.sample(sampling, d.store) })
	defer sampler.Wait()
	defer endSampling()
	for {
		err := d.runSession(ctx)
		switch {
		case leaseLoss(err) == nil:
			return err
		case ctx.Err() != nil:
			return err
		}
		d.log.Error("lease lost", "error", err)
	}
}

func (d *Daemon) runSession(ctx context.Context) error {
	session := newSession(d)
	if err := session.join(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	d.current.Store(session)
	defer d.current.Store(nil)
	return session.run(ctx)
}
