package drainer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
)

var errAway = errors.New("no database")

// awayStore is a store whose database goes away, once it has told of the gates.
type awayStore struct {
	Store
	gates []Gate
}

func (s awayStore) Gates(context.Context, string) ([]Gate, error)        { return s.gates, nil }
func (awayStore) Closed(context.Context, string) ([]string, error)       { return nil, errAway }
func (awayStore) Join(context.Context, string, []string, []string) error { return errAway }
func (awayStore) Publish(context.Context, map[string]string) error       { return errAway }
func (awayStore) Leave(context.Context, string) error                    { return errAway }
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

// Half of what the workers share would send rows of runs that were closed.
func TestWhatTheWorkersShareIsLearntWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	l := laneTo(nil)
	s := &session{upstreams: l.pool.upstreams, closed: l.pool.closed, observer: l.observer, store: awayStore{gates: []Gate{{Name: "sim", Paused: true}}}}
	s.closed.learn([]string{"run"})
	if err := s.readFleet(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("%v, want that the database is away", err)
	}
	if l.pool.isPaused() || !s.closed.bars(&Row{Tuple: tracedRow(nil).Tuple}) {
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
	s.wake("sim") // one that has not looked yet need not be told twice
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
	u.learn(Gate{Workers: 3, Rank: 0})
	if slots, rate, burst := u.slots.size(), u.pace.Limit(), u.pace.Burst(); slots != 4 || rate != 30 || burst != 3 {
		t.Errorf("%d slots, %v a second, bursts of %d; want 4, 30 and 3", slots, rate, burst)
	}
	u.learn(Gate{Workers: 20, Rank: 19})
	if slots := u.slots.size(); slots != 0 {
		t.Errorf("the last of twenty has %d of ten slots", slots)
	}
}

func TestABudgetIsSpentAndComesBack(t *testing.T) {
	t.Parallel()
	u := newUpstream(dispatch.Provider{Concurrency: 10, RateLimit: dispatch.RateLimit{PerSecond: 0.001, Burst: 2}})
	u.learn(Gate{Workers: 1}) // and it starts with one, not with a burst
	for _, want := range []int{1, 0} {
		got, wait := u.budget()
		if got != want || (got == 0) != (wait > 0) {
			t.Errorf("a budget of %d and a wait of %s, want %d", got, wait, want)
		}
		u.spend()
	}
}

// closing is an adapter that ends in its own way.
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
				time.Sleep(2 * time.Hour) // whatever hung has ended
			})
		})
	}
}
