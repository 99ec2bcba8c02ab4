package drainer

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
)

// beatFunc is a store that only hears heartbeats.
type beatFunc func(context.Context) (bool, error)

func (f beatFunc) Beat(ctx context.Context, _ string) (bool, error)     { return f(ctx) }
func (beatFunc) Join(context.Context, string, []string, []string) error { return nil }
func (beatFunc) Retire(context.Context, string) error                   { return nil }
func (beatFunc) Leave(context.Context, string) error                    { return nil }
func (beatFunc) DeclareDead(context.Context, []Heartbeat) error         { return nil }
func (beatFunc) Beats(context.Context, time.Duration) ([]Heartbeat, error) {
	return nil, nil
}

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

func TestAWorkerThatWasDeclaredDeadLosesItsLeaseAtTheNextBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		beats := 0
		lease := newLease(beatFunc(func(context.Context) (bool, error) {
			beats++
			return beats < 3, nil
		}), "worker", timing, time.Now())
		if err := lease.keep(t.Context()); !errors.Is(err, errDeclaredDead) || beats != 3 {
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
				if err := lease.keep(t.Context()); !errors.Is(err, errNoHeartbeat) {
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

func TestADeadWorkersRowIsLeftToWhoeverKnowsItsTool(t *testing.T) {
	t.Parallel()
	s := &session{upstreams: map[string]*upstream{"sim": newUpstream(dispatch.Provider{
		Name: "sim", Tools: map[string]dispatch.Policy{"act": {Class: dispatch.NaturallyIdempotent, MaxAttempts: 3}},
	})}}
	for name, test := range map[string]struct {
		tool, via string
		claimed   time.Duration // ago
		status    dispatch.Status
	}{
		"a tool of ours":                            {"sim/act", "", 0, dispatch.StatusPending},
		"a tool of ours that another knows":         {"sim/other", "", time.Hour, ""},
		"a provider of another":                     {"else/act", "", time.Hour, ""},
		"our fallback":                              {"else/act", "sim", 0, dispatch.StatusPending},
		"a fallback that another may know":          {"sim/act", "backup", forgottenAfter - time.Minute, ""},
		"a fallback that nobody seems to know":      {"sim/act", "backup", forgottenAfter + time.Minute, dispatch.StatusUnknown},
		"a fallback of another's that nobody knows": {"else/act", "backup", time.Hour, ""},
	} {
		row := &Row{Via: test.via, ClaimedAt: time.Now().Add(-test.claimed), Tuple: dispatch.Tuple{ToolName: test.tool}}
		got, judged := s.judgeLost(row)
		if judged != (test.status != "") || got.Decision.Status != test.status {
			t.Errorf("%s: judged %v as %q, want %q", name, judged, got.Decision.Status, test.status)
		}
	}
}

// beatsStore has the heartbeats of workers, by a clock of its own.
type beatsStore struct {
	Store
	beats func() []Heartbeat
	dead  map[string]time.Time // when each was declared dead first
}

func (s *beatsStore) Beats(context.Context, time.Duration) ([]Heartbeat, error) {
	return s.beats(), nil
}

func (s *beatsStore) DeclareDead(_ context.Context, silent []Heartbeat) error {
	for _, beat := range silent {
		if _, again := s.dead[beat.Worker]; !again {
			s.dead[beat.Worker] = time.Now()
		}
	}
	return nil
}

func (s *beatsStore) Reap(context.Context, []string, Judge) ([]Settlement, error) { return nil, nil }

func newReaperOf(store Store) *reaper {
	settings := Settings{Worker: timing}
	return (&session{store: store, settings: settings, observer: newObserver(nil, false, slog.New(slog.DiscardHandler), prometheus.NewRegistry())}).newReaper()
}

// The database's clock leaps, stands still or jumps back: the heartbeats' own times mean nothing.
func TestAWorkerIsDeadOnceItsHeartbeatStoodStillForALease(t *testing.T) {
	for name, at := range map[string]time.Duration{"long ago": -time.Hour, "now": 0, "in the future": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				died := begun.Add(time.Minute)
				store := &beatsStore{dead: map[string]time.Time{}, beats: func() []Heartbeat {
					return []Heartbeat{
						{Worker: "lives", At: time.Now().Truncate(timing.Heartbeat).Add(at), Overdue: true},
						{Worker: "dies", At: earlier(time.Now(), died).Truncate(timing.Heartbeat).Add(at), Overdue: true},
					}
				}}
				ctx, stop := context.WithDeadline(t.Context(), died.Add(time.Minute))
				defer stop()
				newReaperOf(store).run(ctx)
				after := store.dead["dies"].Sub(died)
				if len(store.dead) != 1 || after < timing.Lease-timing.Heartbeat || after > timing.Lease*3/2 {
					t.Errorf("declared dead were %v, want the one that died, after a lease; it was after %s", store.dead, after)
				}
			})
		})
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// A worker that drains once may be the only one that ever looks.
func TestDrainingOnceWaitsForWorkersThatLookDeadAndForNoOthers(t *testing.T) {
	for name, test := range map[string]struct {
		beat  func() Heartbeat
		waits time.Duration
		dead  int
	}{
		"it beat lately":               {func() Heartbeat { return Heartbeat{Worker: "w"} }, 0, 0},
		"it looks dead and is":         {func() Heartbeat { return Heartbeat{Worker: "w", Overdue: true} }, timing.Lease, 1},
		"it looked dead, and beats":    {leaps(), timing.Lease / 2, 0},
		"it looks dead with each beat": {func() Heartbeat { return Heartbeat{Worker: "w", At: time.Now(), Overdue: true} }, 5 * timing.Lease / 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &beatsStore{dead: map[string]time.Time{}, beats: func() []Heartbeat { return []Heartbeat{test.beat()} }}
				begun := time.Now()
				newReaperOf(store).runOnce(t.Context())
				if took := time.Since(begun); took > test.waits || len(store.dead) != test.dead {
					t.Errorf("after %s %d were declared dead, want after %s %d", took, len(store.dead), test.waits, test.dead)
				}
			})
		})
	}
}

// leaps is a worker whose last heartbeat looks old until it beats again.
func leaps() func() Heartbeat {
	looks := 0
	return func() Heartbeat {
		looks++
		return Heartbeat{Worker: "w", At: time.Unix(int64(looks), 0), Overdue: looks == 1}
	}
}
