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

	// Sagas gets, after the commit, what a batch meant for sagas, where it meant
	// anything. It must not block. It may be nil.
	Sagas func(SagaNews)

	// Secrets are taken out of what providers answer. nil takes out nothing.
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

// WorkerSettings time a worker's life. Lease is how long other workers wait
// without a heartbeat before they declare one dead; it stops sending after two thirds
// of that. ShutdownTimeout bounds the dispatches still under way at a shutdown.
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

// succeed lets one generation follow the other. Any number of earlier ones may
// still finish what they began.
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

// generation is the time of one configuration's providers. One session after
// the other serves them, each until it loses its lease, and the last one until
// the next generation takes over or the daemon stops. Their adapters are closed
// at the generation's end.
type generation struct {
	providers []dispatch.Provider
	digest    []byte // of the whole configuration
	daemon    *Daemon
	takeOver  func()          // once the first session has joined
	begun     chan bool       // then true; at the end false
	retired   context.Context // ends with the generation's turn to claim, and with the daemon's
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

// roster is the sessions of one process, in the order in which they joined. The
// newest one claims; those before it finish what they began. The zero value has
// none.
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

// newest is nil while no session has joined.
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

// awaitEarlier returns when every session that joined before has left, or when
// ctx ends.
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

// earlier is nil if s is the oldest, else closed when the next session leaves.
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

// errStopped says that a daemon stops, or has stopped.
var errStopped = errors.New("the daemon is stopping; nothing was reloaded")

// reload is handed from [Daemon.Reload] to [Daemon.Run].
type reload struct {
	providers []dispatch.Provider
	digest    []byte
	done      chan error
}

// Reload puts these providers in the place of those that the daemon serves. The digest
// is that of the whole configuration. It returns nil when they are served: when a new worker has joined that claims
// for them. While the database is away, it waits, and the old ones stay.
//
// The worker before claims nothing more from then on. It gives back what it has
// not sent, and what it has in flight ends in its own time and is settled as
// ever, outside of ShutdownTimeout unless the daemon stops. Together they keep
// the providers' limits. Then the adapters before are closed.
//
// The adapters are the daemon's, whatever Reload returns; no adapter may be
// handed in twice. An error says that the daemon has stopped.
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

// ErrRowsLeft says that draining once could not drain all that is due.
var ErrRowsLeft = errors.New("due rows are left, because their provider is paused, its circuit breaker or that of their operation is open, or the database may have lost commits; look at drainer providers list and drainer history, and run again")

// countLeft tells lanes that may not send, because their gate is shut or their history waits for an
// operator, from those that had nothing to send anyway.
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

// shutProviders asks the database too: a claim respects a gate that others have just shut
// before its lane has heard of that, and finds nothing.
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

// closedRuns are the agent runs that were closed, by a saga or an operator,
// after rows of theirs may have been claimed here. The zero value knows none.
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

// contains reports whether a claimed row must not be sent any more. Undos and
// questions still are: they end what the run began.
func (c *closedRuns) contains(row *Row) bool {
	closed := c.runs.Load()
	if closed == nil || row.Undoes != nil || row.Lookup {
		return false
	}
	_, is := (*closed)[row.Tuple.AgentRunID]
	return is
}

// stuckAfter is well above what one round of a lane's loop can take: a batch's
// timeout, for what was lost, and the longest backoff. A round counts as none while
// a batch is overdue.
const stuckAfter = time.Minute

// pulse is the time of a loop's last round. It is nil before the loop begins and after
// it ends.
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

// Live reports a loop that no longer goes round: a bug, cured by a restart. It
// never asks the database: restarting cures no outage. A session that was
// retired may take as long as its dispatches may.
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

// Ready reports why this process cannot claim rows right now. A lane whose batches
// alone fail counts as well: where that is so of all replicas nothing is lost, for
// no traffic comes to any of them.
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
