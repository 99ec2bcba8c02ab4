package drainer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

var (
	errBuried = errors.New("another worker declared this one dead; starting over under a new identity")
	errMute   = errors.New("no heartbeat reached the database in time; starting over under a new identity")
)

// lease is a worker's right to send. It is renewed by heartbeats and ends well
// before others may bury the worker, so that a paused or cut-off process has
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

// holds is asked right before every send: a process that was paused finds out
// here, whatever its timers did meanwhile.
func (l *lease) holds() bool { return elapsed(*l.renewed.Load()) < l.validFor }

func (l *lease) renew(at time.Time) { l.renewed.Store(&at) }

// keep beats until ctx ends (nil) or the lease is lost.
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

// beat counts from before the round trip: the database cannot have seen it
// earlier. A failed beat is no loss while the last good one still holds.
func (l *lease) beat(ctx context.Context) error {
	started := time.Now()
	bounded, cancel := context.WithDeadline(ctx, l.renewed.Load().Add(l.validFor))
	defer cancel()
	alive, err := l.store.Beat(bounded, l.worker)
	switch {
	case err == nil && !alive:
		return errBuried
	case err == nil:
		l.renew(started)
		return nil
	case ctx.Err() != nil || l.holds():
		return nil
	}
	return errors.Join(errMute, err)
}
