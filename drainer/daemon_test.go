package drainer

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestASessionWaitsForThoseThatJoinedBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r roster
		oldest, middle, newest := &session{}, &session{}, &session{}
		left := make(chan *session, 3)
		for _, s := range []*session{oldest, middle, newest} {
			r.enter(s)
		}
		for _, s := range []*session{newest, middle, oldest} {
			go func() {
				r.awaitEarlier(t.Context(), s)
				left <- s
				if s != newest {
					r.exit(s)
				}
			}()
		}
		for _, want := range []*session{oldest, middle, newest} {
			if <-left != want {
				t.Fatal("a session left before one that had joined before")
			}
		}
		if r.newest() != newest || len(r.all()) != 1 {
			t.Error("the newest is not the one that is left")
		}
	})
}

func TestTheWaitForEldersIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r roster
		elder, s := &session{}, &session{}
		r.enter(elder)
		r.enter(s)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			r.awaitEarlier(ctx, s)
			close(ended)
		}()
		synctest.Wait()
		cancel()
		<-ended
	})
}

func TestAStopEndsAReloadThatWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var first, second atomic.Int64
		counted := func(closed *atomic.Int64) []dispatch.Provider {
			return []dispatch.Provider{{Name: "sim", Adapter: closing{close: func() error { closed.Add(1); return nil }}}}
		}
		o, _ := observing()
		daemon := New(awayStore{}, counted(&first), Settings{}, o.log, prometheus.NewRegistry())
		ctx, stop := context.WithCancel(t.Context())
		ended, reloaded := make(chan error, 1), make(chan error, 1)
		go func() { ended <- daemon.Run(ctx) }()
		go func() { reloaded <- daemon.Reload(counted(&second), nil) }()
		synctest.Wait() // both try to join
		stop()
		if err := <-reloaded; !errors.Is(err, errStopped) {
			t.Errorf("it reloaded although nobody could join: %v", err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if first.Load() != 1 || second.Load() != 1 {
			t.Errorf("the adapters were closed %d and %d times, want each once", first.Load(), second.Load())
		}
	})
}

// An orchestrator counts a shutdown that failed. Here the lease is lost while the database answers nothing.
func TestAShutdownWhoseLeaseIsLostFailsOnlyIfSomethingIsUnsettled(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{"the database is back in time": nil, "the database stays away": errUnsettled} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, said := observing()
				store := answerlessStore{back: make(chan struct{})}
				sim := dispatch.Provider{Name: "sim", Concurrency: 1, Adapter: closing{close: func() error { return nil }}}
				settings := Settings{Worker: timing}
				settings.Worker.ShutdownTimeout = timing.Lease
				daemon := New(store, []dispatch.Provider{sim}, settings, o.log, prometheus.NewRegistry())
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- daemon.Run(ctx) }()
				time.Sleep(timing.Lease*2/3 - time.Millisecond)
				stop()
				time.Sleep(2 * time.Millisecond) // now it has no lease
				if want == nil {
					close(store.back)
				}
				if err := <-ended; !errors.Is(err, want) || (want == nil) != (err == nil) {
					t.Errorf("it ended with %v, want %v", err, want)
				}
				if !strings.Contains(said.String(), "the lease was lost before the shutdown ended") {
					t.Errorf("the log does not tell the lost lease: %s", said)
				}
			})
		})
	}
}

// answerlessStore lets a worker join, and then answers nothing until it is back.
type answerlessStore struct {
	awayStore
	back chan struct{}
}

func (s answerlessStore) answer(ctx context.Context) error {
	select {
	case <-s.back:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (answerlessStore) Publish(context.Context, map[string]string) error { return nil }

func (answerlessStore) ProbeNow(context.Context, []string) error { return nil }

func (answerlessStore) Join(context.Context, string, []string, []string, ...[]byte) error { return nil }

func (answerlessStore) Closed(context.Context, string) ([]string, error) { return nil, nil }

func (answerlessStore) Unpark(context.Context, []string, []string) error { return nil }

func (s answerlessStore) Beat(ctx context.Context, _ string) (bool, error) {
	return true, s.answer(ctx)
}

func (s answerlessStore) Leave(ctx context.Context, _ string) error { return s.answer(ctx) }

func (answerlessStore) Beats(context.Context, time.Duration) ([]Heartbeat, error) {
	return nil, errAway
}

func (answerlessStore) Listen(context.Context, func(string)) error { return errAway }

func (s answerlessStore) Commit(ctx context.Context, _ string, batch Batch) (BatchReply, error) {
	return BatchReply{Claimed: make([]ClaimReply, len(batch.Claims))}, s.answer(ctx)
}

func (s answerlessStore) Reclaim(ctx context.Context, _, _, _ string, _ []int64, _ Judge) ([]Settlement, error) {
	return nil, s.answer(ctx)
}

func TestWhoDrainsOnceTellsThatAGateShutMeanwhileKeptRows(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gate Gate
		due  int
		left bool
	}{
		"others paused it":            {Gate{Name: "sim", Paused: true, Breaker: BreakerClosed}, 3, true},
		"others opened its breaker":   {Gate{Name: "sim", Breaker: BreakerOpen}, 3, true},
		"another one is trying it":    {Gate{Name: "sim", Breaker: BreakerHalfOpen}, 3, true},
		"nothing is due behind it":    {Gate{Name: "sim", Paused: true, Breaker: BreakerClosed}, 0, false},
		"it is not shut":              {Gate{Name: "sim", Breaker: BreakerClosed}, 3, false},
		"it is none of this worker's": {Gate{Name: "other", Paused: true, Breaker: BreakerClosed}, 3, false},
	} {
		s := &session{
			settings:  Settings{Once: true},
			store:     gateStore{gate: test.gate, due: test.due},
			upstreams: map[string]*upstream{"sim": newUpstream(dispatch.Provider{Name: "sim"})},
		}
		if err := s.countLeft(t.Context()); errors.Is(err, ErrRowsLeft) != test.left {
			t.Errorf("%s: it says %v, want rows left %v", name, err, test.left)
		}
	}
}

type gateStore struct {
	Store
	gate Gate
	due  int
}

func (s gateStore) Gates(context.Context, string) ([]Gate, error) { return []Gate{s.gate}, nil }

func (s gateStore) Due(_ context.Context, providers, _ []string) (map[string]int, error) {
	due := map[string]int{}
	for _, provider := range providers {
		due[provider] = s.due
	}
	return due, nil
}

func TestOnlyForwardStepsOfAClosedRunAreBarred(t *testing.T) {
	t.Parallel()
	of := func(run string) dispatch.Tuple { return dispatch.Tuple{AgentRunID: run} }
	for name, test := range map[string]struct {
		row  Row
		want bool
	}{
		"a step":               {Row{Tuple: of("closed")}, true},
		"its retry":            {Row{Tuple: of("closed"), MaybeApplied: true}, true},
		"an undo":              {Row{Tuple: of("closed"), Undoes: new(int64)}, false},
		"a question":           {Row{Tuple: of("closed"), Lookup: true}, false},
		"a step of a run open": {Row{Tuple: of("open")}, false},
	} {
		var c closedRuns
		if c.contains(&test.row) {
			t.Errorf("%s: barred before anything was closed", name)
		}
		c.add([]string{"closed"})
		if got := c.contains(&test.row); got != test.want {
			t.Errorf("%s: barred is %t, want %t", name, got, test.want)
		}
		c.add(nil)
		if c.contains(&test.row) {
			t.Errorf("%s: barred after all was forgotten", name)
		}
	}
}

// A lane may drain for as long as its dispatches may take, and no longer. If an adapter ignores its context, only a
// restart helps.
func TestALaneHangsOnlyOnceItsDispatchesShouldHaveEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stop, stopNow := context.WithCancel(t.Context())
		abort, abortNow := context.WithCancel(t.Context())
		defer abortNow()
		life := lifetimes{stop: stop, abort: abort}
		l := &lane{
			pool: &pool{outcomes: newOutcomes(), upstreams: map[string]*upstream{
				"sim":    newUpstream(dispatch.Provider{Name: "sim", Timeout: time.Second}),
				"backup": newUpstream(dispatch.Provider{Name: "backup", Timeout: 10 * time.Minute}),
			}},
			outstanding: 1,
		}
		for _, step := range []struct {
			name string
			do   func()
			want bool
		}{
			{"it claims", func() { time.Sleep(time.Hour) }, false},
			{"it drains", stopNow, false},
			{"the longest dispatch may still be under way", func() { time.Sleep(10 * time.Minute) }, false},
			{"every dispatch should have ended", func() { time.Sleep(time.Second) }, true},
			{"it did, and its outcome waits for the database", func() { l.pool.outcomes.put(Settlement{}) }, false},
			{"another has not", func() { l.outstanding++ }, true},
			{"nothing is left", func() { l.outstanding, l.pool.outcomes = 0, newOutcomes() }, false},
		} {
			step.do()
			if got := l.adapterHangs(life); got != step.want {
				t.Errorf("%s: it hangs is %v, want %v", step.name, got, step.want)
			}
		}
		l.outstanding, l.stoppedAt = 1, time.Time{}
		abortNow()
		if !l.adapterHangs(life) {
			t.Error("an adapter ignores that it was cancelled, and the lane does not hang")
		}
	})
}

// A retired session may continue for long because of one provider. The lanes of its other providers have ended, and a
// restart would not help.
func TestALaneThatHasEndedIsNotStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stop, stopNow := context.WithCancel(t.Context())
		stopNow()
		ended := laneTo(nil)
		ended.pulse.beat()
		var daemon Daemon
		daemon.roster.enter(&session{lanes: map[route]*lane{{"idle", "idle"}: ended}})
		if err := ended.run(lifetimes{stop: stop, abort: t.Context(), giveUp: t.Context()}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * stuckAfter)
		if err := daemon.Live(); err != nil {
			t.Errorf("a lane ended in order, and the daemon says: %v", err)
		}
	})
}

func TestALoopThatNoLongerGoesRoundIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turning := &lane{}
		var daemon Daemon
		daemon.roster.enter(&session{lanes: map[route]*lane{{"sim", "backup"}: turning}})
		if err := daemon.Live(); err != nil {
			t.Errorf("it has not begun, and the daemon says: %v", err)
		}
		turning.pulse.beat()
		time.Sleep(stuckAfter)
		if err := daemon.Live(); err != nil {
			t.Errorf("its round may take that long, and the daemon says: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if err := daemon.Live(); err == nil || !strings.Contains(err.Error(), `the lane of provider "sim" has been stuck for over 1m0s`) {
			t.Errorf("it is stuck, and the daemon says: %v", err)
		}
	})
}

// Heartbeats are small, so they may succeed while batches fail.
func TestALaneWhoseBatchesFailIsNotReady(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(*lane, error){
		"claims": func(l *lane, err error) {
			l.onClaimed(claimResult{of: &share{begunAt: time.Now()}, err: err})
		},
		"settlements": func(l *lane, err error) {
			l.onSettled(settleResult{of: &share{begunAt: time.Now()}, err: err})
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := laneTo(nil)
			daemon := Daemon{}
			daemon.roster.enter(&session{lease: l.pool.lease, lanes: map[route]*lane{{"sim", "sim"}: l}})
			registry := prometheus.NewRegistry()
			registry.MustRegister(l.observer.metrics.stalled)
			shown := func() float64 { return values(t, registry)["lane_stalled sim"] }
			for _, step := range []struct {
				what  string
				err   error
				after time.Duration
				ready bool
			}{
				{"one fails", errAway, 0, true},
				{"they have failed for a minute", errAway, stalledAfter, true},
				{"they have failed for longer", errAway, time.Second, false},
				{"one succeeds", nil, time.Second, true},
				{"another fails later", errAway, 2 * stalledAfter, true},
			} {
				time.Sleep(step.after)
				l.pool.lease.renew(time.Now())
				fails(l, step.err)
				l.stall(l.isStalled())
				err := daemon.Ready()
				if (err == nil) != step.ready || (shown() == 0) != step.ready {
					t.Errorf("%s: %s: it says %v and shows %v", name, step.what, err, shown())
				}
				if !step.ready && !strings.Contains(err.Error(), `provider "sim"`) {
					t.Errorf("%s: it says %v", name, err)
				}
			}
		})
	}
}

func TestADaemonIsReadyWhileItsNewestWorkerMayClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var daemon Daemon
		worker := &session{lease: newLease(beatFunc(nil), "worker", timing, time.Now())}
		for _, step := range []struct {
			name string
			do   func()
			want bool
		}{
			{"nobody has joined", func() {}, false},
			{"a worker has", func() { daemon.roster.enter(worker) }, true},
			{"its lease may be over", func() { time.Sleep(mustStopAfter) }, false},
			{"it beat", func() { worker.lease.renew(time.Now()) }, true},
			{"it stops", func() { worker.stopping.Store(true) }, false},
		} {
			step.do()
			if err := daemon.Ready(); (err == nil) != step.want {
				t.Errorf("%s: it says %v", step.name, err)
			}
		}
	})
}
