package drainer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

var (
	errDeclaredDead = errors.New("another worker declared this one dead; starting over under a new identity")
	// ErrLostCommits says that the store forgot what it had committed to a worker.
	ErrLostCommits = errors.New("the database lost commits; starting over under a new identity")
	errNoHeartbeat = errors.New("no heartbeat reached the database in time; starting over under a new identity")
)

// lease is a worker's right to send. It is renewed by heartbeats and ends well
// before others may declare the worker dead, so that a paused or cut-off process has
// stopped sending by the time its rows are taken over.
type lease struct {
	store    workerStore
	worker   string
	interval time.Duration
	validFor time.Duration
	renewed  atomic.Pointer[time.Time]
}

func newLease(store workerStore, worker string, settings WorkerSettings, joined time.Time) *lease {
	l := &lease{store: store, worker: worker, interval: settings.Heartbeat, validFor: settings.Lease * 2 / 3}
	l.renew(joined)
	return l
}

// holds is asked right before every send. A process that was paused finds out here that its lease is over,
// whatever its timers did meanwhile.
func (l *lease) holds() bool { return elapsed(*l.renewed.Load()) < l.validFor }

func (l *lease) renew(at time.Time) { l.renewed.Store(&at) }

// keep sends heartbeats until ctx ends, and then returns nil, or until the lease is lost.
func (l *lease) keep(ctx context.Context) error {
	ticker := time.NewTicker(l.interval)
	defer ticker.Stop()
	for {
		if err := l.beat(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// beat renews the lease from the time before the round trip, since the database cannot have seen the heartbeat
// earlier. A failed heartbeat loses nothing while the last good one is valid.
func (l *lease) beat(ctx context.Context) error {
	started := time.Now()
	bounded, cancel := context.WithDeadline(ctx, l.renewed.Load().Add(l.validFor))
	defer cancel()
	alive, err := l.store.Beat(bounded, l.worker)
	switch {
	case errors.Is(err, ErrLostCommits):
		return err
	case err == nil && !alive:
		return errDeclaredDead
	case err == nil:
		l.renew(started)
		return nil
	case ctx.Err() != nil || l.holds():
		return nil
	}
	return errors.Join(errNoHeartbeat, err)
}

// reaper declares workers dead and recovers their rows. Every worker has one; the store lets only one reaper declare
// a death or recover a row. A worker is dead if this reaper saw its heartbeat unchanged for a whole lease, by
// the reaper's own monotonic clock. So a jump of the database's clock ends no lease, and a reaper that
// has just started or was suspended must observe for a lease first.
type reaper struct {
	*session
	seen map[string]sighting
}

// sighting is the latest time since which a worker's heartbeat has not changed.
type sighting struct {
	beat  time.Time
	since time.Time // after the heartbeat was read
}

func (s *session) newReaper() *reaper { return &reaper{session: s, seen: map[string]sighting{}} }

// run reaps again and again.
func (r *reaper) run(ctx context.Context) {
	for ctx.Err() == nil {
		r.reap(ctx)
		pause(ctx, r.untilNext())
	}
}

// runOnce recovers the rows of workers that look dead by the database's clock, and waits until each of them has sent a
// heartbeat or was declared dead: after this worker there may be no other process that would do so.
func (r *reaper) runOnce(ctx context.Context) {
	started := time.Now()
	for r.reap(ctx) && ctx.Err() == nil && time.Since(started) < 2*r.settings.Worker.Lease {
		pause(ctx, r.untilNext())
	}
}

// untilNext is the time until the next look: a third of a lease on average, or less if a silent worker can be declared
// dead before. Jitter keeps workers that started together from reaping at the same time.
func (r *reaper) untilNext() time.Duration {
	interval := r.settings.Worker.Lease / 3
	next := interval/2 + time.Duration(rand.Float64()*float64(interval))
	for _, last := range r.seen {
		if left := r.settings.Worker.Lease - time.Since(last.since); left > 0 {
			next = min(next, left)
		}
	}
	return next
}

// reap reports whether a worker that is not declared dead yet has an overdue heartbeat.
func (r *reaper) reap(ctx context.Context) (suspects bool) {
	recovered, suspects, err := r.recoverLost(ctx)
	r.observer.recovered(recovered)
	r.markSagas(recovered)
	if err != nil && ctx.Err() == nil {
		r.log.Warn("cannot recover the rows of dead workers now", "error", err)
	}
	r.expire(ctx, r.settings.UnconfiguredFailAfter, "no drainer had their operation", unknownOperation, r.store.Expire)
	r.expire(ctx, r.settings.MisconfiguredFailAfter, "drainer was refused", r.judgeRefused, r.store.ExpireRefused)
	return suspects && err == nil
}

func (r *reaper) markSagas(settled []Settlement) {
	if r.settings.Sagas != nil && slices.ContainsFunc(settled, func(s Settlement) bool { return s.ConcernsSaga() }) {
		r.settings.Sagas(SagaNews{Marked: true})
	}
}

// expire ends rows that have waited for longer than after, which cause explains; 0 waits forever.
func (r *reaper) expire(ctx context.Context, after time.Duration, cause string, judge Judge,
	end func(context.Context, string, []string, time.Duration, Judge) ([]Settlement, error),
) {
	if after <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	expired, err := end(ctx, r.worker, r.providerNames(), after, judge)
	r.observer.expired(expired, cause)
	r.markSagas(expired)
	if err != nil && ctx.Err() == nil {
		r.log.Warn("cannot end intents now that wait because "+cause, "error", err)
	}
}

func (r *reaper) recoverLost(ctx context.Context) (recovered []Settlement, suspects bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	began := time.Now()
	beats, err := r.store.Beats(ctx, r.settings.Worker.Lease)
	if err != nil {
		return nil, false, err
	}
	silent, suspects := r.look(beats, began, time.Now())
	if len(silent) > 0 {
		if err := r.store.DeclareDead(ctx, silent); err != nil {
			return nil, false, err
		}
	}
	recovered, err = r.store.Reap(ctx, r.providerNames(), r.judgeLost)
	return recovered, suspects, err
}

// look compares the heartbeats with those of the last look. A new heartbeat counts from the end of the look that found
// it, and must be unchanged for a lease before the current look began. The store compares once more when
// the worker is declared dead, so time that passes until then does no harm.
func (r *reaper) look(beats []Heartbeat, began, ended time.Time) (silent []Heartbeat, suspects bool) {
	seen := make(map[string]sighting, len(beats))
	for _, beat := range beats {
		last, known := r.seen[beat.Worker]
		if !known || !last.beat.Equal(beat.At) {
			last = sighting{beat: beat.At, since: ended}
		}
		seen[beat.Worker] = last
		if began.Sub(last.since) >= r.settings.Worker.Lease {
			silent = append(silent, beat)
		} else if beat.Overdue {
			suspects = true
		}
	}
	r.seen = seen
	return silent, suspects
}

// forgottenAfter is how long a dead worker's row waits for a process that has the fallback which was to
// serve the row.
const forgottenAfter = 10 * time.Minute

// judgeRefused ends a row that waited too long.
func (s *session) judgeRefused(row *Row) (Settlement, bool) {
	var policy dispatch.Policy
	if upstream, configured := s.upstreams[row.Tuple.Provider()]; configured {
		policy = upstream.provider.Tools[row.Tuple.Operation()]
	}
	return refusedTooLong(row, policy), true
}

// judgeLost leaves a row of a tool that is not configured here to a worker that
// knows its class.
func (s *session) judgeLost(row *Row) (Settlement, bool) {
	upstream, configured := s.upstreams[row.server()]
	if !configured {
		_, isOurs := s.upstreams[row.Tuple.Provider()]
		if isOurs && elapsed(row.ClaimedAt) > forgottenAfter {
			return lose(row, dispatch.Policy{Class: dispatch.NonIdempotent}), true // its class is not known, so it must not be repeated
		}
		return Settlement{}, false
	}
	policy, configured := upstream.provider.Tools[row.Tuple.Operation()]
	if !configured {
		return Settlement{}, false
	}
	return lose(row, policy), true
}
