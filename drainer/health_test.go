package drainer

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What drains may take as long as its dispatches may, and no longer: an adapter
// that ignores its context is what a restart cures.
func TestALaneHangsOnlyOnceItsDispatchesShouldHaveEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stop, stopNow := context.WithCancel(t.Context())
		abort, abortNow := context.WithCancel(t.Context())
		defer abortNow()
		life := lifetimes{stop: stop, abort: abort}
		l := &lane{
			upstreams: map[string]*upstream{
				"sim":    newUpstream(Provider{Name: "sim", Timeout: time.Second}),
				"backup": newUpstream(Provider{Name: "backup", Timeout: 10 * time.Minute}),
			},
			outstanding: 1, outcomes: newOutcomes(),
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
			{"it did, and its outcome waits for the database", func() { l.outcomes.put(Settlement{}) }, false},
			{"another has not", func() { l.outstanding++ }, true},
			{"nothing is left", func() { l.outstanding, l.outcomes = 0, newOutcomes() }, false},
		} {
			step.do()
			if got := l.hangs(life); got != step.want {
				t.Errorf("%s: it hangs is %v, want %v", step.name, got, step.want)
			}
		}
		l.outstanding, l.stoppedAt = 1, time.Time{}
		abortNow()
		if !l.hangs(life) {
			t.Error("an adapter ignores that it was cancelled, and the lane does not hang")
		}
	})
}

// A retired session may go on for long because of one provider. The lanes of
// the others have done what they had to, and a restart would cure nothing.
func TestALaneThatHasEndedIsNotStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stop, stopNow := context.WithCancel(t.Context())
		stopNow()
		ended := &lane{server: newUpstream(Provider{Name: "idle", Concurrency: 1})}
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
