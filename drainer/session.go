package drainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/failpoint"
)

// settleGrace is how long the last batches may take once sending was aborted.
const settleGrace = 3 * time.Second

// session is the life of one worker identity: it joins, drains with one lane a
// provider, and leaves when all it claimed is settled.
type session struct {
	roster    *roster
	worker    string
	providers []dispatch.Provider
	digest    []byte // of the whole configuration
	settings  Settings
	store     Store
	observer  *observer
	tracing   *tracing
	log       *slog.Logger
	lease     *lease
	committer *committer
	upstreams map[string]*upstream
	closed    *closedRuns
	lanes     map[route]*lane
	stopping  atomic.Bool // it claims nothing more
}

func newSession(d *Daemon, providers []dispatch.Provider, digest []byte) *session {
	worker := uuid.NewString()
	s := &session{
		roster:    &d.roster,
		worker:    worker,
		providers: providers,
		digest:    digest,
		settings:  d.settings,
		store:     d.store,
		observer:  d.observer,
		tracing:   d.tracing,
		log:       d.log.With("worker", worker),
		committer: newCommitter(d.store, worker, d.observer.committed, d.settings.Sagas),
		upstreams: map[string]*upstream{},
		closed:    &closedRuns{},
		lanes:     map[route]*lane{},
	}
	for _, provider := range providers {
		s.upstreams[provider.Name] = newUpstream(provider)
		s.upstreams[provider.Name].follow(s.roster, s)
		s.upstreams[provider.Name].isRendered = s.isRendered
	}
	return s
}

// run returns when the session was stopped or retired, has drained everything once, or has lost its lease. lost says why
// the lease was lost: a new session may begin then. err says that something is left undone, or may be. Requests in flight
// are cut off shutdown_timeout after stop, and never because of a retirement.
func (s *session) run(stop, retired context.Context) (lost, err error) {
	claiming, stopClaiming := context.WithCancelCause(retired)
	sending, abort := context.WithCancelCause(context.WithoutCancel(stop))
	settling, giveUp := context.WithCancelCause(context.WithoutCancel(stop))
	background, endBackground := context.WithCancel(context.WithoutCancel(stop))

	var services sync.WaitGroup
	services.Go(func() { s.boundShutdown(stop, background, abort, giveUp) })
	services.Go(func() { s.retireWhenReplaced(stop, retired, background) })
	services.Go(func() { s.committer.run(background) })
	services.Go(func() { s.listen(claiming) })
	services.Go(func() { s.watchFleet(claiming) })
	context.AfterFunc(claiming, func() {
		s.stopping.Store(true)
		s.liftSlots() // dispatchers that wait for a slot must see the stop
	})
	services.Go(func() {
		// A lost lease ends sending at once; settling goes on until the database has everything.
		// Sending is aborted before claiming is stopped: an idle lane ends with its claiming, and
		// the session must know the reason by then.
		if lost := s.lease.keep(background); lost != nil {
			abort(lost)
			stopClaiming(lost)
		}
	})
	if s.settings.Once {
		s.newReaper().runOnce(claiming)
	} else {
		services.Go(func() { s.newReaper().run(claiming) })
	}
	drained := s.drain(lifetimes{stop: claiming, abort: sending, giveUp: settling})
	if drained == nil {
		drained = s.countLeft(stop)
	}
	lost = leaseLoss(context.Cause(sending))
	if stop.Err() != nil {
		// Its share of the limits covers what retired sessions still send.
		s.roster.awaitEarlier(settling, s)
	}
	stopClaiming(nil)
	endBackground()
	services.Wait()
	s.leave()
	return lost, drained
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

// retireWhenReplaced gives up this session's share of the limits once its successor has joined.
// The successor counts the requests that are still under way here.
func (s *session) retireWhenReplaced(stop, retired, background context.Context) {
	select {
	case <-retired.Done():
	case <-background.Done():
	}
	for failures := 1; stop.Err() == nil && background.Err() == nil; failures++ {
		if failures == 1 {
			s.log.Info("handing over to a new configuration; requests in flight end first")
		}
		ctx, cancel := context.WithTimeout(background, batchTimeout)
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
	if errors.Is(cause, errDeclaredDead) || errors.Is(cause, errNoHeartbeat) || errors.Is(cause, ErrLostCommits) {
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
			s.observer.concealShutOperations(s.upstreams)
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
	ctx, cancel := context.WithTimeout(stop, batchTimeout)
	defer cancel()
	namespaces := map[string]string{}
	for _, provider := range s.providers {
		namespaces[provider.Name] = provider.Namespace
	}
	if err := s.store.Publish(ctx, namespaces); err != nil {
		return err
	}
	if err := s.store.ProbeNow(ctx, s.providerNames()); err != nil {
		return err
	}
	tools, _ := s.tools()
	digests := make([][]byte, len(s.providers))
	for i, provider := range s.providers {
		digests[i] = provider.Digest
	}
	if err := s.store.Join(ctx, s.worker, s.providerNames(), tools, append(digests, s.digest)...); err != nil {
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

// leave tells the other workers that this one has ended, so that they need not wait for its lease.
func (s *session) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), settleGrace)
	defer cancel()
	noteCtx, noted := context.WithTimeout(ctx, settleGrace/3) // most of the time is kept for leaving
	defer noted()
	if err := s.noteRendered(noteCtx); err != nil {
		s.log.Debug("cannot note which operations work", "error", err)
	}
	if err := s.store.Leave(ctx, s.worker); err != nil {
		s.log.Warn("cannot leave; the worker will be declared dead when its lease is over", "error", err)
		return
	}
	s.log.Info("left")
}

// listen wakes lanes by notification. Without it polling finds the same rows a little later, so a failed
// connection is only a debug line.
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

// hasInFlight reports whether a call of the provider's adapter has not returned.
func (s *session) hasInFlight(provider string) bool { return s.upstreams[provider].slots.inUse() > 0 }

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

// tools lists all operations of this worker, as provider/operation. detours are those of them whose provider
// has a fallback here.
func (s *session) tools() (tools, detours []string) {
	for _, provider := range s.providers {
		_, detour := s.upstreams[provider.Fallback]
		for operation := range provider.Tools {
			tools = append(tools, provider.Name+"/"+operation)
			if detour {
				detours = append(detours, provider.Name+"/"+operation)
			}
		}
	}
	return tools, detours
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

// Gate is the state of a provider, or of one of its operations, that all workers share: whether anything may
// be sent to it, and, for a provider, how many workers serve it.
type Gate struct {
	Name    string // a provider, or provider/operation
	Paused  bool
	Breaker BreakerState
	Reason  OpenReason    // why it is not closed
	OpenFor time.Duration // the rest of the cool-down or, while half-open, of the time that the probe has
	Workers int           // that serve the provider, this one included
	Rank    int           // this worker's place among them, from 0; all workers use the same order
}

// BreakerState is where a provider's circuit breaker stands (Nygard, "Release
// It!", 2007).
type BreakerState string

const (
	BreakerClosed   BreakerState = "closed"
	BreakerOpen     BreakerState = "open"
	BreakerHalfOpen BreakerState = "half_open" // one worker tries with one row
)

// share returns this worker's part of a limit. The parts of all workers add up to the limit exactly, so
// with more workers than the limit some get 0.
func (g Gate) share(limit int) int {
	workers := max(1, g.Workers)
	share := limit / workers
	if g.Rank < limit%workers {
		share++
	}
	return share
}

// fleetInterval is how often a worker reads what all workers share. Until then rows that were claimed before may be
// sent although a breaker has opened, a provider was paused, a run was closed or another worker has joined.
const fleetInterval = 500 * time.Millisecond

// watchFleet keeps gates and shares up to date. While the database is away the last known ones are used;
// nothing can be claimed then anyway.
func (s *session) watchFleet(ctx context.Context) {
	for {
		pause(ctx, fleetInterval)
		if ctx.Err() != nil {
			return
		}
		if err := s.readFleet(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug("cannot read what the workers share; the last known stands", "error", err)
		}
	}
}

func (s *session) readFleet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	gates, err := s.store.Gates(ctx, s.worker)
	if err != nil {
		return err
	}
	closed, err := s.store.Closed(ctx, s.worker)
	if err != nil {
		return err
	}
	s.closed.add(closed)
	failpoint.ClosedRead.Hit()
	tools, detours := s.tools()
	if err := s.store.Unpark(ctx, tools, detours); err != nil {
		return err
	}
	s.applyGates(gates)
	return s.noteRendered(ctx)
}

// noteRendered tells the other workers for which operations this session has rendered a request. It writes once for each
// operation.
func (s *session) noteRendered(ctx context.Context) error {
	var names []string
	var proofs []*rendering
	for _, upstream := range s.upstreams {
		for _, of := range upstream.operations {
			if of.rendering.isUnshared() {
				names, proofs = append(names, of.breaker.name), append(proofs, &of.rendering)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	if err := s.store.NoteRendered(ctx, s.worker, names); err != nil {
		return err
	}
	for _, proof := range proofs {
		proof.share()
	}
	return nil
}

func (s *session) isRendered(ctx context.Context, operation string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	return s.store.IsRendered(ctx, s.worker, operation)
}

func (s *session) applyGates(gates []Gate) {
	shut := map[string]Gate{}
	for _, gate := range gates {
		if upstream, configured := s.upstreams[gate.Name]; configured {
			s.observer.gate(upstream.applyGate(gate), gate)
		} else if strings.Contains(gate.Name, "/") {
			shut[gate.Name] = gate
		}
	}
	for _, upstream := range s.upstreams {
		for _, change := range upstream.applyOperationGates(shut) {
			s.observer.operationGate(change.before, change.now)
		}
	}
}

func (s *session) liftSlots() {
	for _, upstream := range s.upstreams {
		upstream.slots.lift()
	}
}

// closeAdapters closes all adapters that implement io.Closer at the same time, and waits at most settleGrace for
// them. An adapter is closed after its last call returned, or never: one that ignores its context stays open.
func closeAdapters(providers []dispatch.Provider, isBusy func(provider string) bool, log *slog.Logger) {
	var closing sync.WaitGroup
	for _, provider := range providers {
		log := log.With("provider", provider.Name)
		closer, closes := provider.Adapter.(io.Closer)
		switch {
		case !closes:
		case isBusy(provider.Name):
			log.Warn("a call of the adapter has not ended in time; the adapter is not closed")
		default:
			closing.Go(func() { closeAdapter(closer, log) })
		}
	}
	closed := make(chan struct{})
	go func() {
		closing.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(settleGrace):
		log.Warn("closing the adapters takes long; going on without waiting for it")
	}
}

// closeAdapter does not log the adapter's error text, which could show an address.
func closeAdapter(closer io.Closer, log *slog.Logger) {
	defer func() {
		if cause := recover(); cause != nil {
			log.Error("adapter panicked while it was closed", "panic_type", fmt.Sprintf("%T", cause))
		}
	}()
	if err := closer.Close(); err != nil {
		log.Warn("the adapter could not be closed in order", "error_type", fmt.Sprintf("%T", err))
	}
}
