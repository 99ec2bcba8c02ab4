package drainer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
)

// beatFunc is a store with heartbeats only.
type beatFunc func(context.Context) (bool, error)

func (f beatFunc) Beat(ctx context.Context, _ string) (bool, error)                { return f(ctx) }
func (beatFunc) Join(context.Context, string, []string, []string, ...[]byte) error { return nil }
func (beatFunc) Retire(context.Context, string) error                              { return nil }
func (beatFunc) Leave(context.Context, string) error                               { return nil }
func (beatFunc) DeclareDead(context.Context, []Heartbeat) error                    { return nil }
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

// beatsStore is a store of workers' heartbeats, with a clock of its own.
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

// expiredStore ends one row of an unknown operation, or one that waited for a gate.
type expiredStore struct {
	Store
	refused bool
}

func (expiredStore) Beats(context.Context, time.Duration) ([]Heartbeat, error) { return nil, nil }

func (expiredStore) Reap(context.Context, []string, Judge) ([]Settlement, error) { return nil, nil }

func (s expiredStore) Expire(context.Context, string, []string, time.Duration, Judge) ([]Settlement, error) {
	return s.ended(!s.refused), nil
}

func (s expiredStore) ExpireRefused(context.Context, string, []string, time.Duration, Judge) ([]Settlement, error) {
	return s.ended(s.refused), nil
}

func (s expiredStore) ended(is bool) []Settlement {
	if !is {
		return nil
	}
	return []Settlement{{Row: rowOf(1), Decision: dispatch.Decision{Status: dispatch.StatusFailed}}}
}

func TestTheLogSaysWhyIntentsEndedThatWaitedTooLong(t *testing.T) {
	t.Parallel()
	for refused, cause := range map[bool]string{false: "no drainer had their operation", true: "drainer was refused"} {
		o, said := observing(dispatch.Provider{Name: "sim"})
		r := newReaperOf(expiredStore{refused: refused})
		r.observer, r.settings.UnconfiguredFailAfter, r.settings.MisconfiguredFailAfter = o, time.Hour, time.Hour
		r.reap(t.Context())
		want := `level=WARN msg="intents have ended because ` + cause + ` for too long" provider=sim intents=1` + "\n"
		if said.String() != want {
			t.Errorf("it says %swant %s", said, want)
		}
	}
}

// The database's clock may leap, stand still or jump back. So only a change of a heartbeat's time counts, not the time
// itself.
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

// A worker that drains once may be the only process that looks for dead workers.
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

// leaps returns a worker whose last heartbeat looks old until its next one.
func leaps() func() Heartbeat {
	looks := 0
	return func() Heartbeat {
		looks++
		return Heartbeat{Worker: "w", At: time.Unix(int64(looks), 0), Overdue: looks == 1}
	}
}

var errAway = errors.New("no database")

// awayStore is a store that returns its gates, and fails all other calls.
type awayStore struct {
	Store
	gates []Gate
}

func (s awayStore) Gates(context.Context, string) ([]Gate, error) { return s.gates, nil }

func (awayStore) Closed(context.Context, string) ([]string, error) { return nil, errAway }

func (awayStore) Join(context.Context, string, []string, []string, ...[]byte) error { return errAway }

func (awayStore) Publish(context.Context, map[string]string) error { return errAway }

func (awayStore) Leave(context.Context, string) error { return errAway }

func (awayStore) Due(context.Context, []string, []string) (map[string]int, error) {
	return nil, errAway
}

func TestAWorkerThatCannotSayGoodbyeSaysWhatWillHappen(t *testing.T) {
	t.Parallel()
	o, said := observing()
	(&session{store: awayStore{}, log: o.log}).leave()
	if want := "cannot leave; the worker will be declared dead when its lease is over"; !strings.Contains(said.String(), want) {
		t.Errorf("it says %q, want %q", said, want)
	}
}

// A worker that learned only a half of the shared state could send rows of runs that were closed.
func TestWhatTheWorkersShareIsLearntWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	l := laneTo(nil)
	s := &session{upstreams: l.pool.upstreams, closed: l.pool.closed, observer: l.observer, store: awayStore{gates: []Gate{{Name: "sim", Paused: true}}}}
	s.closed.add([]string{"run"})
	if err := s.readFleet(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("%v, want that the database is away", err)
	}
	if l.pool.isPaused() || !s.closed.contains(&Row{Tuple: tracedRow(nil).Tuple}) {
		t.Error("the last known does not stand")
	}
}

func TestDrainingOnceFailsIfNobodyCanTellWhatIsLeft(t *testing.T) {
	t.Parallel()
	shut, open := &lane{shut: true}, &lane{}
	s := &session{settings: Settings{Once: true}, store: awayStore{}, lanes: map[route]*lane{{"sim", "sim"}: shut}}
	if err := s.countLeft(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("%v, want that the database is away", err)
	}
	s.lanes = map[route]*lane{{"sim", "sim"}: open}
	if err := s.countLeft(t.Context()); err != nil {
		t.Errorf("no gate was shut, and it says %v", err)
	}
}

func TestALostLeaseIsToldFromEveryOtherEnd(t *testing.T) {
	t.Parallel()
	for cause, want := range map[error]error{errDeclaredDead: errDeclaredDead, errNoHeartbeat: errNoHeartbeat, errShutdown: nil, errUnsettled: nil, nil: nil} {
		if got := leaseLoss(cause); !errors.Is(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%v: %v, want %v", cause, got, want)
		}
	}
}

func TestANotificationWakesEveryLaneOfItsProviderAndNoOther(t *testing.T) {
	t.Parallel()
	s := &session{lanes: map[route]*lane{}}
	for _, r := range []route{{"sim", "sim"}, {"sim", "backup"}, {"backup", "backup"}} {
		s.lanes[r] = &lane{wake: make(chan struct{}, 1)}
	}
	s.wake("sim")
	s.wake("sim") // a lane that has not looked yet needs no second wake-up
	var woken []string
	for r, lane := range s.lanes {
		if len(lane.wake) > 0 {
			woken = append(woken, r.provider+" through "+r.server)
		}
	}
	slices.Sort(woken)
	if want := []string{"sim through backup", "sim through sim"}; !slices.Equal(woken, want) {
		t.Errorf("%q woke, want %q", woken, want)
	}
}

func TestTheSharesOfAFleetAddUpToTheLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.IntRange(1, 50).Draw(t, "workers")
		limit := rapid.IntRange(0, 500).Draw(t, "limit")
		sum, least, most := 0, limit, 0
		for rank := range workers {
			share := Gate{Workers: workers, Rank: rank}.share(limit)
			sum, least, most = sum+share, min(least, share), max(most, share)
		}
		if sum != limit || most-least > 1 {
			t.Fatalf("the shares add up to %d, and range from %d to %d", sum, least, most)
		}
	})
}

func TestAWorkerKeepsToItsShare(t *testing.T) {
	t.Parallel()
	u := newUpstream(dispatch.Provider{Concurrency: 10, RateLimit: dispatch.RateLimit{PerSecond: 90, Burst: 9}})
	u.applyGate(Gate{Workers: 3, Rank: 0})
	if slots, rate, burst := u.slots.size(), u.pace.Limit(), u.pace.Burst(); slots != 4 || rate != 30 || burst != 3 {
		t.Errorf("%d slots, %v a second, bursts of %d; want 4, 30 and 3", slots, rate, burst)
	}
	u.applyGate(Gate{Workers: 20, Rank: 19})
	if slots := u.slots.size(); slots != 0 {
		t.Errorf("the last of twenty has %d of ten slots", slots)
	}
}

func TestABudgetIsSpentAndComesBack(t *testing.T) {
	t.Parallel()
	u := newUpstream(dispatch.Provider{Concurrency: 10, RateLimit: dispatch.RateLimit{PerSecond: 0.001, Burst: 2}})
	u.applyGate(Gate{Workers: 1}) // the budget starts at one, not at a burst
	for _, want := range []int{1, 0} {
		got, wait := u.budget()
		if got != want || (got == 0) != (wait > 0) {
			t.Errorf("a budget of %d and a wait of %s, want %d", got, wait, want)
		}
		u.spend()
	}
}

// closing is an adapter whose Close is a function of the test.
type closing struct {
	dispatch.Adapter
	close func() error
}

func (c closing) Close() error { return c.close() }

func TestAnAdapterThatCannotBeClosedHoldsNobodyUpAndIsNotQuoted(t *testing.T) {
	const secret = "postgres://user:canary@db"
	for name, test := range map[string]struct {
		close func() error
		takes time.Duration
		want  string
	}{
		"in order":  {func() error { return nil }, 0, ""},
		"it fails":  {func() error { return errors.New(secret) }, 0, `msg="the adapter could not be closed in order" provider=sim error_type=*errors.errorString`},
		"it panics": {func() error { panic(secret) }, 0, `msg="adapter panicked while it was closed" provider=sim panic_type=string`},
		"it hangs":  {func() error { time.Sleep(time.Hour); return nil }, settleGrace, `msg="closing the adapters takes long; going on without waiting for it"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, said := observing()
				began := time.Now()
				closeAdapters([]dispatch.Provider{{Name: "sim", Adapter: closing{close: test.close}}, {Name: "bare"}}, func(string) bool { return false }, o.log)
				if took := time.Since(began); took != test.takes {
					t.Errorf("it took %s, want %s", took, test.takes)
				}
				if !strings.Contains(said.String(), test.want) || (test.want == "" && said.Len() > 0) {
					t.Errorf("it says %q, want %q", said, test.want)
				}
				if strings.Contains(said.String(), "canary") {
					t.Errorf("it repeats the adapter's own words: %q", said)
				}
				time.Sleep(2 * time.Hour) // a Close that hung has ended
			})
		})
	}
}
