package drainer

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
)

// Settings are the engine's own; a provider's are in [Provider].
type Settings struct {
	Worker WorkerSettings
	Once   bool // stop when nothing is due and nothing is in flight

	// SagaMoved is told, after the commit, of an agent run whose saga began or
	// whose undo ended. It must not block. nil is told nothing.
	SagaMoved func(agentRunID string)

	// Traces gets a span of every attempt's wait, dispatch and settling, in the
	// trace that the agent left with its intent. nil traces nothing, and leaves
	// the agent's trace context as it is.
	Traces trace.TracerProvider
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
	store    Store
	first    []Provider
	settings Settings
	observer *observer
	tracing  *tracing
	log      *slog.Logger
	roster   roster
	reloads  chan reload
	ended    chan struct{}
}

// New registers the daemon's metrics; nothing runs before [Daemon.Run]. The
// providers' adapters are the daemon's from then on: Run closes those that
// implement [io.Closer].
func New(store Store, providers []Provider, settings Settings, log *slog.Logger, metrics prometheus.Registerer) *Daemon {
	return &Daemon{
		store:    store,
		first:    providers,
		settings: settings,
		observer: newObserver(providers, log, metrics),
		tracing:  newTracing(settings.Traces),
		log:      log,
		reloads:  make(chan reload),
		ended:    make(chan struct{}),
	}
}

// Run drains until ctx ends, then shuts down: it claims nothing more, lets
// what is in flight finish within ShutdownTimeout, gives back what was not
// sent, and returns nil if every outcome is settled. Draining once, it returns
// ErrRowsLeft if a shut gate kept it from sending what is due. It may be called
// once.
func (d *Daemon) Run(ctx context.Context) error {
	defer close(d.ended)
	return d.succeed(ctx)
}

// succeed lets one generation follow the other. Any number of earlier ones may
// still finish what they began.
func (d *Daemon) succeed(ctx context.Context) error {
	var generations errgroup.Group
	begin := func(providers []Provider, takeOver func()) *generation {
		generation := newGeneration(ctx, d, providers, takeOver)
		generations.Go(func() error { return generation.run(ctx) })
		return generation
	}
	current := begin(d.first, func() {})
	for {
		select {
		case <-current.ended:
			return generations.Wait()
		case reload := <-d.reloads:
			next := begin(reload.providers, func() {
				d.observer.serve(reload.providers)
				current.retire()
			})
			if !<-next.begun {
				reload.done <- errStopped
				continue
			}
			current = next
			reload.done <- nil
		}
	}
}
