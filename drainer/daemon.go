package drainer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/agentoutbox/drainer/dispatch"
)

// Settings are the engine's own; a provider's are in [dispatch.Provider].
type Settings struct {
	Worker WorkerSettings
	Digest []byte // of the whole configuration, which [Daemon.Reload] replaces; it is keyed before others see it
	Once   bool   // stop when nothing is due and nothing is in flight

	// Sagas is called after the commit of a batch that concerned sagas. It must not block. It may be
	// nil.
	Sagas func(SagaNews)

	// Secrets removes configured secrets from answers of providers. nil removes nothing.
	Secrets *Redactor

	// UnconfiguredFailAfter is how long a row waits for a worker that knows its
	// operation, of a provider that is served. 0 waits forever.
	UnconfiguredFailAfter time.Duration

	// MisconfiguredFailAfter is how long a row waits for a gate that is shut because
	// this side was refused. 0 waits forever.
	MisconfiguredFailAfter time.Duration

	// Traces gets a span of every attempt's wait, dispatch and settling, in the
	// trace that the agent left with its intent. nil traces nothing, and leaves
	// the agent's trace context as it is.
	Traces trace.TracerProvider

	// NativeHistograms adds Prometheus's native form to each histogram.
	NativeHistograms bool
}

// WorkerSettings holds the times of a worker's life. Other workers declare it dead after Lease without a
// heartbeat; it stops sending after two thirds of that. ShutdownTimeout bounds the dispatches that are
// under way at a shutdown.
type WorkerSettings struct {
	Heartbeat       time.Duration
	Lease           time.Duration
	ShutdownTimeout time.Duration
}

// Daemon drains an outbox until it is told to stop.
type Daemon struct {
	store    Store
	first    []dispatch.Provider
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
func New(store Store, providers []dispatch.Provider, settings Settings, log *slog.Logger, metrics prometheus.Registerer) *Daemon {
	return &Daemon{
		store:    store,
		first:    providers,
		settings: settings,
		observer: newObserver(providers, settings.NativeHistograms, log, metrics),
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

// succeed runs one generation after the other. Any number of earlier ones may still be finishing their
// requests.
func (d *Daemon) succeed(ctx context.Context) error {
	var generations errgroup.Group
	begin := func(providers []dispatch.Provider, digest []byte, takeOver func()) *generation {
		generation := newGeneration(ctx, d, providers, digest, takeOver)
		generations.Go(func() error { return generation.run(ctx) })
		return generation
	}
	current := begin(d.first, d.settings.Digest, func() {})
	for {
		select {
		case <-current.ended:
			return generations.Wait()
		case reload := <-d.reloads:
			next := begin(reload.providers, reload.digest, func() {
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

// generation serves the providers of one configuration, with one session after the other: each until it loses
// its lease, and the last one until the next generation takes over or the daemon stops. At its end
// the adapters are closed.
type generation struct {
	providers []dispatch.Provider
	digest    []byte // of the whole configuration
	daemon    *Daemon
	takeOver  func()          // once the first session has joined
	begun     chan bool       // gets true once the first session has joined, and false at the end
	retired   context.Context // ends when the generation must stop claiming, or the daemon stops
	retire    context.CancelFunc
	ended     chan struct{}
}

func newGeneration(stop context.Context, daemon *Daemon, providers []dispatch.Provider, digest []byte, takeOver func()) *generation {
	g := &generation{providers: providers, digest: digest, daemon: daemon, begun: make(chan bool, 2), ended: make(chan struct{})}
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
	closeAdapters(g.providers, last.hasInFlight, g.daemon.log)
	if stop.Err() == nil {
		g.daemon.observer.forget(g.providers)
	}
	return err
}

func (g *generation) serve(stop context.Context) (last *session, err error) {
	for {
		session := newSession(g.daemon, g.providers, g.digest)
		if !session.join(g.retired) {
			return session, nil
		}
		lost, err := g.runJoined(stop, session)
		if lost == nil {
			return session, err
		}
		if stop.Err() != nil { // no failure by itself: the rows are settled or taken over; if not, err says it
			g.daemon.log.Warn("the lease was lost before the shutdown ended", "worker", session.worker, "error", lost)
			return session, err
		}
		g.daemon.log.Error("lease lost", "worker", session.worker, "error", lost)
		if g.retired.Err() != nil {
			return session, err
		}
	}
}

// runJoined takes over before its first claim. Only one generation claims at a time, and the one before it
// stops only when the new one has joined.
func (g *generation) runJoined(stop context.Context, session *session) (lost, err error) {
	roster := &g.daemon.roster
	roster.enter(session)
	defer roster.exit(session)
	g.takeOver()
	return session.run(stop, g.retired)
}

// roster lists the sessions of one process in the order in which they joined. The newest one claims; those
// before it finish their requests. The zero value is empty.
type roster struct {
	mu       sync.Mutex
	sessions []*session
	changed  chan struct{} // closed at the next exit
}

func (r *roster) enter(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions = append(r.sessions, s)
}

func (r *roster) exit(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions = slices.DeleteFunc(r.sessions, func(other *session) bool { return other == s })
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

func (r *roster) all() []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sessions)
}

// newest returns nil while no session has joined.
func (r *roster) newest() *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sessions) == 0 {
		return nil
	}
	return r.sessions[len(r.sessions)-1]
}

// inUse counts the dispatches that the other sessions have under way at a provider.
func (r *roster) inUse(provider string, but *session) (dispatches int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		if upstream, serves := s.upstreams[provider]; serves && s != but {
			dispatches += upstream.slots.inUse()
		}
	}
	return dispatches
}

// awaitEarlier returns when every session that joined before s has left, or when ctx ends.
func (r *roster) awaitEarlier(ctx context.Context, s *session) {
	for ctx.Err() == nil {
		changed := r.earlier(s)
		if changed == nil {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// earlier returns nil if s is the oldest session, else a channel that is closed when the next session leaves.
func (r *roster) earlier(s *session) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sessions) == 0 || r.sessions[0] == s {
		return nil
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

// errStopped is returned by Reload of a daemon that stops, or has stopped.
var errStopped = errors.New("the daemon is stopping; nothing was reloaded")

// reload is handed from [Daemon.Reload] to [Daemon.Run].
type reload struct {
	providers []dispatch.Provider
	digest    []byte
	done      chan error
}

// Reload replaces the providers that the daemon serves. The digest is that of the whole configuration. Reload
// returns nil once a new worker has joined that claims for them. While the database is away it waits,
// and the old providers are served.
//
// From then on the old worker claims nothing more. It releases the rows that it has not sent. Its requests
// in flight end in their own time and are settled; ShutdownTimeout bounds them only if the daemon
// stops. Both workers together keep the providers' limits. At the end the old adapters are closed.
//
// The daemon owns the adapters from the call on, even if Reload returns an error. No adapter may be
// passed twice. An error says that the daemon has stopped.
func (d *Daemon) Reload(providers []dispatch.Provider, digest []byte) error {
	request := reload{providers, digest, make(chan error, 1)}
	select {
	case d.reloads <- request:
		return <-request.done
	case <-d.ended:
		closeAdapters(providers, func(string) bool { return false }, d.log)
		return errStopped
	}
}

// ErrRowsLeft says that a daemon which drains once has left due rows.
var ErrRowsLeft = errors.New("due rows are left, because their provider is paused, its circuit breaker or that of their operation is open, or the database may have lost commits; look at drainer providers list and drainer history, and run again")

// countLeft returns ErrRowsLeft if rows are due at providers to which nothing may be sent now, because
// a gate is shut or the database's history waits for an operator.
func (s *session) countLeft(stop context.Context) error {
	if !s.settings.Once || stop.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(stop, batchTimeout)
	defer cancel()
	shut, err := s.shutProviders(ctx)
	if err != nil {
		return err
	}
	once := map[string]bool{}
	for route, lane := range s.lanes {
		if lane.planner.claim.ActsOnce {
			once[route.provider] = true
		}
	}
	if len(shut) == 0 && len(once) == 0 {
		return nil
	}
	due, err := s.store.Due(ctx, slices.Sorted(maps.Keys(shut)), slices.Sorted(maps.Keys(once)))
	if err != nil {
		return fmt.Errorf("count the due rows that are left: %w", err)
	}
	var left []string
	for _, provider := range slices.Sorted(maps.Keys(due)) {
		if due[provider] > 0 {
			left = append(left, fmt.Sprintf("%s %d", provider, due[provider]))
		}
	}
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("%w (%s)", ErrRowsLeft, strings.Join(left, ", "))
}

// shutProviders asks the database, too: if another worker has just shut a gate, a claim finds nothing before
// the lane knows of it.
func (s *session) shutProviders(ctx context.Context) (map[string]bool, error) {
	gates, err := s.store.Gates(ctx, s.worker)
	if err != nil {
		return nil, fmt.Errorf("look whether a provider is shut: %w", err)
	}
	shut := map[string]bool{}
	for _, gate := range gates {
		provider, _, _ := strings.Cut(gate.Name, "/")
		_, own := s.upstreams[provider]
		if own && (gate.Paused || gate.Breaker != BreakerClosed) {
			shut[gate.Name] = true // a shut operation's lane bears its name
		}
	}
	for route, lane := range s.lanes {
		if lane.shut {
			shut[route.provider] = true
		}
	}
	return shut, nil
}

// closedRuns holds the runs that a saga or an operator has closed while rows of them may have been claimed
// here. The zero value is empty.
type closedRuns struct {
	runs atomic.Pointer[map[string]struct{}]
}

func (c *closedRuns) add(runs []string) {
	closed := make(map[string]struct{}, len(runs))
	for _, run := range runs {
		closed[run] = struct{}{}
	}
	c.runs.Store(&closed)
}

// contains reports whether a claimed row must not be sent any more. Undos and lookups still are, since they
// finish the run.
func (c *closedRuns) contains(row *Row) bool {
	closed := c.runs.Load()
	if closed == nil || row.Undoes != nil || row.Lookup {
		return false
	}
	_, is := (*closed)[row.Tuple.AgentRunID]
	return is
}

// stuckAfter is well above the longest time of one round of a lane's loop: a reclaim's timeout and the longest
// backoff. While a batch is overdue, rounds do not count.
const stuckAfter = time.Minute

// pulse is the time of a loop's last round. It is nil before the loop begins and after it ends.
type pulse struct{ last atomic.Pointer[time.Time] }

func (p *pulse) beat() {
	now := time.Now() // with its monotonic reading: a clock that jumps delays nothing
	p.last.Store(&now)
}

func (p *pulse) end() { p.last.Store(nil) }

func (p *pulse) stuck() bool {
	last := p.last.Load()
	return last != nil && time.Since(*last) > stuckAfter
}

var errNotJoined = errors.New("this worker has not joined: the database is unreachable, or the daemon is starting or stopping")

// Live returns an error if a loop hangs, which is a bug that a restart cures. It never asks the database, since a
// restart cures no outage. A retired session may take as long as its dispatches.
func (d *Daemon) Live() error {
	for _, session := range d.roster.all() {
		for route, lane := range session.lanes {
			if lane.pulse.stuck() {
				return fmt.Errorf("the lane of provider %q has been stuck for over %s; restart this process", route.provider, stuckAfter)
			}
		}
	}
	return nil
}

// Ready returns why this process cannot claim rows right now. A single lane whose batches fail is enough. If that
// makes all replicas unready nothing is lost, since they get no traffic through a Service.
func (d *Daemon) Ready() error {
	session := d.roster.newest()
	if session == nil || session.stopping.Load() || !session.lease.holds() {
		return errNotJoined
	}
	for route, lane := range session.lanes {
		if lane.stalled.Load() {
			return fmt.Errorf("the lane of provider %q has made no progress for over %s: its batches fail, although heartbeats reach the database", route.provider, stalledAfter)
		}
	}
	return nil
}
