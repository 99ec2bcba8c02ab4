package faults_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/cluster"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/world"
)

// The provider remembers a key for 24 h, by a clock that is right. It had its
// effect, and the worker died before it heard of it.
func TestNoKeyIsUsedLateThoughTheDatabasesClockJumps(t *testing.T) {
	t.Parallel()
	clock := cluster.NewClock(t)
	server := cluster.Start(t, clock.Of())
	w := world.At(t, server.URL, nil)
	var passed atomic.Int64 // in truth, since the first send
	w.Provider.KeyTTL = 24 * time.Hour
	w.Provider.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	for _, c := range []struct {
		passed, shown time.Duration
		wants         string
	}{
		{passed: 11 * time.Hour, shown: 11 * time.Hour, wants: "completed"},
		{passed: 22 * time.Hour, shown: 11 * time.Hour, wants: "completed"}, // back by almost half of the key's life
		{passed: 25 * time.Hour, shown: 14 * time.Hour, wants: "unknown"},   // as much, and it is forgotten
		{passed: 0, shown: 13 * time.Hour, wants: "unknown"},                // forward: nobody knows, but nobody claims to
	} {
		clock.SetOff(0)
		passed.Store(0)
		run := w.NewRun()
		w.Step(run, 1, world.Keyed)
		killed := w.Start("DRAINER_FAILPOINTS=after_reply=kill")
		<-killed.Ended
		clock.SetOff(c.shown)
		passed.Store(int64(c.passed))
		next := w.Start()
		w.AwaitRest()
		if w.Count(`SELECT count(*) FROM outbox.status WHERE agent_run_id = $1 AND status = $2`, run, c.wants) != 1 {
			t.Errorf("after %s, of which the clock shows %s, it is not %s", c.passed, c.shown, c.wants)
		}
		next.Terminate()
		fault.Injected(t, 32, 1)
	}
	w.Check()
}

// The clock goes back by an hour, and then forward by two: every lease is over,
// and every worker declares the others dead.
func TestAClockThatJumpsUnderLoadLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	clock := cluster.NewClock(t)
	server := cluster.Start(t, clock.Of())
	w := world.At(t, server.URL, nil)
	w.Start()
	w.Start()
	stop := w.Agents(everyClass...)
	jumps := []time.Duration{-time.Hour, time.Hour}
	for _, to := range jumps {
		w.AwaitMoreEffects(30)
		clock.SetOff(to)
	}
	w.AwaitMoreEffects(30)
	stop()
	w.AwaitRest()
	fault.Injected(t, 32, len(jumps))
	w.Check()
	w.CheckClaimed()
}

// Keys live so short, and what is planned lies so near, that whoever compared
// the two clocks would take one for dead and the other for due.
func TestWorkersAnHourOffTheDatabaseMoveNothing(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"behind it": time.Hour, "ahead of it": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := cluster.NewClock(t)
			server := cluster.Start(t, clock.Of())
			clock.SetOff(off)
			w := world.At(t, server.URL, dispatchtest.Script(dispatchtest.ErrorAfter))
			w.Reconfigure(func(config string) string { return strings.ReplaceAll(config, "ttl: 24h", "ttl: 1h") })
			w.Exec(`SELECT outbox.enqueue('planned', '1', $1, 'order', '{"n": 1}', now() + interval '30 minutes')`, world.Keyed)
			enqueueOfEach(w, 5)
			takeBack(w, "back")
			victim := w.Start("DRAINER_FAILPOINTS=after_reply=kill@8")
			await(t, "the worker dies", victim.Ended)
			w.Start()
			w.Start()
			w.AwaitCount("all that is due ends", 5*len(everyClass), `SELECT count(*) FROM outbox.status WHERE finished_at IS NOT NULL`)
			w.AwaitCount("the run goes back", 1, `SELECT count(*) FROM outbox.saga WHERE agent_run_id = 'back' AND state = 'compensated'`)
			fault.Injected(t, 31, w.Count(`SELECT count(*) FROM outbox.attempt`))
			if early := w.Count(`SELECT count(*) FROM outbox.status WHERE agent_run_id = 'planned' AND attempts > 0`); early > 0 {
				t.Error("what was planned for later was claimed")
			}
			w.Exec(`UPDATE outbox.queue SET next_attempt_at = now()`)
			w.AwaitRest()
			w.Check()
			if unknown := w.Count(`SELECT count(*) FROM outbox.status WHERE status = 'unknown' AND tool_name <> $1`, world.Once); unknown > 0 {
				t.Errorf("%d rows were taken for too old to be tried again", unknown)
			}
		})
	}
}

// A few seconds later an hour is skipped, or comes twice; of two daemons one
// counts in UTC.
func TestDaylightSavingMovesNoInstant(t *testing.T) {
	t.Parallel()
	for season, change := range map[string]time.Time{
		"spring": time.Date(2026, time.March, 29, 1, 0, 0, 0, time.UTC),
		"autumn": time.Date(2026, time.October, 25, 1, 0, 0, 0, time.UTC),
	} {
		t.Run(season, func(t *testing.T) {
			t.Parallel()
			clock := cluster.NewClock(t)
			server := cluster.Start(t, clock.Of())
			cluster.Exec(t, server, `ALTER DATABASE postgres SET TimeZone = 'Europe/Berlin'`)
			w := world.At(t, server.URL, nil)
			clock.SetOff(time.Until(change.Add(-6 * time.Second)))
			w.Start()
			w.Start("PGTZ=UTC")
			const planned = 6
			for n := range planned {
				w.Exec(`SELECT outbox.enqueue('planned', $1, $2, 'order', '{"n": 1}', now() + $3 * interval '2 seconds')`,
					fmt.Sprint(n), world.Keyed, n)
			}
			stop := w.Agents(everyClass...)
			drainertest.Eventually(t, "the last one that was planned is done", func() bool {
				return w.Count(`SELECT count(*) FROM outbox.status WHERE agent_run_id = 'planned' AND status = 'completed'`) == planned
			})
			stop()
			w.AwaitRest()
			fault.Injected(t, 33, w.Count(`SELECT count(*) FROM outbox.attempt WHERE finished_at > $1`, change))
			w.Check()
			if astray := w.Count(`
				SELECT count(*) FROM history.transition t JOIN outbox.intent i ON i.id = t.intent_id
				WHERE i.agent_run_id = 'planned' AND t.place = 'claim' AND t.change = 'INSERT'
				AND t.at - coalesce(i.not_before, i.created_at) NOT BETWEEN '0 s' AND '30 s'`); astray > 0 {
				t.Errorf("%d of %d intents were not claimed when they were due", astray, planned)
			}
		})
	}
}
