package drainer

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

// settleGrace is how long the last turns may take once sending was aborted.
const settleGrace = 3 * time.Second

// session is the life of one worker identity: it joins, drains with one lane a
// provider, and leaves when all it claimed is settled.
type session struct {
	roster    *roster
	worker    string
	providers []Provider
	settings  Settings
	store     Store
	observer  *observer
	tracing   *tracing
	log       *slog.Logger
	lease     *lease
	turns     *turns
	upstreams map[string]*upstream
	closings  *closings
	lanes     map[route]*lane
	stopping  atomic.Bool // it claims nothing more
}

func newSession(d *Daemon, providers []Provider) *session {
	worker := uuid.NewString()
	s := &session{
		roster:    &d.roster,
		worker:    worker,
		providers: providers,
		settings:  d.settings,
		store:     d.store,
		observer:  d.observer,
		tracing:   d.tracing,
		log:       d.log.With("worker", worker),
		turns:     newTurns(d.store, worker, d.observer.turned),
		upstreams: map[string]*upstream{},
		closings:  &closings{},
		lanes:     map[route]*lane{},
	}
	for _, provider := range providers {
		s.upstreams[provider.Name] = newUpstream(provider)
		s.upstreams[provider.Name].follow(s.roster, s)
	}
	return s
}

// run returns nil when it was stopped or retired, or has drained all once; a
// lost lease is an error, after which a new session may begin. What is in
// flight is cut off some time after stop, and never for a retirement.
func (s *session) run(stop, retired context.Context) error {
	claiming, stopClaiming := context.WithCancelCause(retired)
	sending, abort := context.WithCancelCause(context.WithoutCancel(stop))
	settling, giveUp := context.WithCancelCause(context.WithoutCancel(stop))
	background, endBackground := context.WithCancel(context.WithoutCancel(stop))

	var services sync.WaitGroup
	services.Go(func() { s.boundShutdown(stop, background, abort, giveUp) })
	services.Go(func() { s.standAside(stop, retired, background) })
	services.Go(func() { s.turns.run(background) })
	services.Go(func() { s.listen(claiming) })
	services.Go(func() { s.watchFleet(claiming) })
	context.AfterFunc(claiming, func() {
		s.stopping.Store(true)
		s.liftSlots() // who waits for a slot must see the stop
	})
	services.Go(func() {
		// A lost lease ends sending at once; settling goes on until the database
		// has heard it all. It aborts first: lanes with nothing to do end as soon
		// as claiming does, and the session must know by then why.
		if lost := s.lease.keep(background); lost != nil {
			abort(lost)
			stopClaiming(lost)
		}
	})
	if s.settings.Once {
		s.reapOnce(claiming)
	} else {
		services.Go(func() { s.reap(claiming) })
	}
	drained := s.drain(lifetimes{stop: claiming, abort: sending, giveUp: settling})
	if drained == nil {
		drained = s.countLeft(stop)
	}
	lost := leaseLoss(context.Cause(sending))
	if stop.Err() != nil {
		// Its share of the limits covers what retired sessions still send.
		s.roster.awaitElders(settling, s)
	}
	stopClaiming(nil)
	endBackground()
	services.Wait()
	s.leave()
	return errors.Join(drained, lost)
}

// boundShutdown ends sending, and then settling, some time after stop.
func (s *session) boundShutdown(stop, background context.Context, abort, giveUp context.CancelCauseFunc) {
	select {
	case <-stop.Done():
	case <-background.Done():
		return
	}
	s.log.Info("shutting down", "shutdown_timeout_seconds", s.settings.Worker.ShutdownTimeout.Seconds())
	pause(background, s.settings.Worker.ShutdownTimeout)
	abort(errShutdown)
	pause(background, settleGrace)
	giveUp(errUnsettled)
}

// standAside leaves the limits to whoever took over from this session, which
// counts what is still under way here.
func (s *session) standAside(stop, retired, background context.Context) {
	select {
	case <-retired.Done():
	case <-background.Done():
	}
	for failures := 1; stop.Err() == nil && background.Err() == nil; failures++ {
		if failures == 1 {
			s.log.Info("handing over to a new configuration; what is in flight ends first")
		}
		ctx, cancel := context.WithTimeout(background, turnTimeout)
		err := s.store.Retire(ctx, s.worker)
		cancel()
		if err == nil {
			return
		}
		pause(background, databaseBackoff.Delay(failures, databaseBackoff.Base, rand.Float64()))
	}
}

var (
	errShutdown  = errors.New("shutdown_timeout is over")
	errUnsettled = errors.New("outcomes could not be settled before the shutdown's end; other workers will recover their rows as lost")
)

func leaseLoss(cause error) error {
	if errors.Is(cause, errBuried) || errors.Is(cause, errMute) {
		return cause
	}
	return nil
}

// join retries until the database is there: a new session may begin in the
// middle of an outage. It reports false if stop came first.
func (s *session) join(stop context.Context) bool {
	for failures := 1; ; failures++ {
		joined := time.Now()
		err := s.joinOnce(stop)
		if err == nil {
			s.lease = newLease(s.store, s.worker, s.settings.Worker, joined)
			s.openLanes()
			s.log.Info("joined", "providers", len(s.providers))
			return true
		}
		if stop.Err() != nil {
			return false
		}
		s.log.Warn("cannot join yet; retrying with backoff", "error", err)
		pause(stop, databaseBackoff.Delay(failures, databaseBackoff.Base, rand.Float64()))
	}
}

func (s *session) joinOnce(stop context.Context) error {
	ctx, cancel := context.WithTimeout(stop, turnTimeout)
	defer cancel()
	if err := s.store.Join(ctx, s.worker, s.providerNames()); err != nil {
		return err
	}
	return s.readFleet(ctx)
}

func (s *session) openLanes() {
	for _, provider := range s.providers {
		routes := []route{{provider.Name, provider.Name}}
		if _, configured := s.upstreams[provider.Fallback]; configured {
			routes = append(routes, route{provider.Name, provider.Fallback})
		}
		for _, route := range routes {
			s.lanes[route] = newLane(route, s)
		}
	}
}

func (s *session) drain(life lifetimes) error {
	var group errgroup.Group
	for _, lane := range s.lanes {
		group.Go(func() error { return lane.run(life) })
	}
	return group.Wait()
}

// leave spares the other workers the wait for this one's burial.
func (s *session) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), settleGrace)
	defer cancel()
	if err := s.store.Leave(ctx, s.worker); err != nil {
		s.log.Warn("cannot say goodbye; the worker will be buried when its lease is over", "error", err)
		return
	}
	s.log.Info("left")
}

// listen wakes lanes by notification. Polling finds the same rows a little
// later, so a listener that cannot connect is worth no more than a debug line.
func (s *session) listen(ctx context.Context) {
	for failures := 1; ctx.Err() == nil; failures++ {
		err := s.store.Listen(ctx, s.wake)
		if ctx.Err() != nil {
			return
		}
		s.log.Debug("not listening for notifications; polling finds the rows", "error", err)
		pause(ctx, databaseBackoff.Delay(failures, databaseBackoff.Base, rand.Float64()))
	}
}

// sagaMoved passes on what the commit of a settlement means for its run.
func (s *session) sagaMoved(settlement Settlement) {
	if s.settings.SagaMoved != nil && (settlement.BeginsSaga || settlement.Row.Undoes != nil) {
		s.settings.SagaMoved(settlement.Row.Tuple.AgentRunID)
	}
}

// busyWith reports whether an adapter is still called.
func (s *session) busyWith(provider string) bool { return s.upstreams[provider].slots.inUse() > 0 }

func (s *session) wake(provider string) {
	for route, lane := range s.lanes {
		if route.provider != provider {
			continue
		}
		select {
		case lane.wake <- struct{}{}:
		default:
		}
	}
}

func (s *session) providerNames() []string {
	names := make([]string, len(s.providers))
	for i, provider := range s.providers {
		names[i] = provider.Name
	}
	return names
}

// pause waits for the duration or the context's end, whichever comes first.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
