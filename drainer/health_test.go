package drainer

import (
	"context"
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
			outstanding: 1, outcomes: make(chan Settlement, 1),
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
			{"it did, and its outcome waits for the database", func() { l.outcomes <- Settlement{} }, false},
			{"another has not", func() { l.outstanding++ }, true},
			{"nothing is left", func() { l.outstanding, l.outcomes = 0, nil }, false},
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
		ended := &lane{server: newUpstream(Provider{Name: "idle", Concurrency: 1}), jobs: make(chan *Row)}
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
