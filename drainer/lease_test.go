package drainer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// beatFunc is a store that only hears heartbeats.
type beatFunc func(context.Context) (bool, error)

func (f beatFunc) Beat(ctx context.Context, _ string) (bool, error) { return f(ctx) }
func (beatFunc) Join(context.Context, string, []string) error       { return nil }
func (beatFunc) Retire(context.Context, string) error               { return nil }
func (beatFunc) Leave(context.Context, string) error                { return nil }
func (beatFunc) Bury(context.Context, time.Duration) error          { return nil }

var timing = WorkerSettings{Heartbeat: 3 * time.Second, Lease: 15 * time.Second}

const mustStopAfter = 10 * time.Second // two thirds of the lease

func TestHeartbeatsKeepALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := newLease(beatFunc(func(context.Context) (bool, error) { return true, nil }), "worker", timing, time.Now())
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		if err := lease.keep(ctx); err != nil || !lease.holds() {
			t.Errorf("%v after an hour", err)
		}
	})
}

func TestABuriedWorkerLosesItsLeaseAtTheNextBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		beats := 0
		lease := newLease(beatFunc(func(context.Context) (bool, error) {
			beats++
			return beats < 3, nil
		}), "worker", timing, time.Now())
		if err := lease.keep(t.Context()); !errors.Is(err, errBuried) || beats != 3 {
			t.Errorf("%v after %d beats", err, beats)
		}
	})
}

func TestAWorkerWhoseBeatsFailStopsBeforeOthersMayBuryIt(t *testing.T) {
	for name, fail := range map[string]func(context.Context) error{
		"refused": func(context.Context) error { return errors.New("connection refused") },
		"hanging": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				lease := newLease(beatFunc(func(ctx context.Context) (bool, error) { return false, fail(ctx) }), "worker", timing, began)
				if err := lease.keep(t.Context()); !errors.Is(err, errMute) {
					t.Errorf("%v, want the lease to end", err)
				}
				if took := time.Since(began); took < mustStopAfter || took > timing.Lease-time.Second {
					t.Errorf("it stopped after %s, want %s or little more", took, mustStopAfter)
				}
			})
		})
	}
}

func TestABeatCountsFromBeforeItsRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 4 * time.Second
		lease := newLease(beatFunc(func(context.Context) (bool, error) {
			time.Sleep(slow)
			return true, nil
		}), "worker", timing, time.Now())
		if err := lease.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(mustStopAfter - slow)
		if lease.holds() {
			t.Error("the round trip's time was given away")
		}
	})
}

func TestAPausedProcessFindsItsLeaseGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := newLease(beatFunc(nil), "worker", timing, time.Now())
		time.Sleep(mustStopAfter - time.Millisecond)
		if !lease.holds() {
			t.Error("gone too early")
		}
		time.Sleep(time.Millisecond)
		if lease.holds() {
			t.Error("still there, though no timer fired")
		}
	})
}
