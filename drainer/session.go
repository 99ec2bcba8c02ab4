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
	worker    string
	providers []Provider
	settings  Settings
	store     Store
	observer  *observer
	log       *slog.Logger
	lease     *lease
	turns     *turns
	upstreams map[string]*upstream
	closings  *closings
	lanes     map[route]*lane
	stopping  atomic.Bool
}

func newSession(d *Daemon) *session {
	worker := uuid.NewString()
	s := &session{
		worker:    worker,
		providers: d.providers,
		settings:  d.settings,
		store:     d.store,
		observer:  d.observer,
		log:       d.log.With("worker", worker),
		turns:     newTurns(d.store, worker, d.observer.turnTook),
		upstreams: map[string]*upstream{},
		closings:  &closings{},
		lanes:     map[route]*lane{},
	}
	for _, provider := range d.providers {
		s.upstreams[provider.Name] = newUpstream(provider)
	}
	return s
}

// run returns nil when it was stopped, or has drained all once; a lost lease is
// an error, after which a new session may begin.
func (s *session) run(stop context.Context) error {
	claiming, stopClaiming := context.WithCancelCause(stop)
	sending, abort := context.WithCancelCause(context.WithoutCancel(stop))
	settling, giveUp := context.WithCancelCause(context.WithoutCancel(stop))
	background, endBackground := context.WithCancel(context.WithoutCancel(stop))

	var services sync.WaitGroup
	services.Go(func() { s.boundShutdown(stop, background, abort, giveUp) })
	services.Go(func() { s.turns.run(background) })
	services.Go(func() { s.listen(claiming) })
	services.Go(func() { s.watchFleet(claiming) })
	context.AfterFunc(claiming, s.liftSlots) // who waits for a slot must see the stop
	services.Go(func() {
		// A lost lease ends sending at once; settling goes on until the database
		// has heard it all.
		if lost := s.lease.keep(background); lost != nil {
			stopClaiming(lost)
			abort(lost)
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
	s.stopping.Store(true)
	s.log.Info("shutting down", "shutdown_timeout_seconds", s.settings.Worker.ShutdownTimeout.Seconds())
	pause(background, s.settings.Worker.ShutdownTimeout)
	abort(errShutdown)
	pause(background, settleGrace)
	giveUp(errUnsettled)
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
// middle of an outage.
func (s *session) join(stop context.Context) error {
	for failures := 1; ; failures++ {
		joined := time.Now()
		err := s.joinOnce(stop)
		if err == nil {
			s.lease = newLease(s.store, s.worker, s.settings.Worker, joined)
			s.openLanes()
			s.log.Info("joined", "providers", len(s.providers))
			return nil
		}
		if stop.Err() != nil {
			return nil
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
