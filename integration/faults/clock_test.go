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
	"github.com/agentoutbox/drainer/integration/harness"
)

// The provider remembers a key for 24 h, by a clock that is right. The effect happened, and the worker died before it
// recorded this.
func TestNoKeyIsUsedLateThoughTheDatabasesClockJumps(t *testing.T) {
	t.Parallel()
	clock := cluster.NewClock(t)
	server := cluster.Start(t, clock.Of())
	rig := harness.At(t, server.URL, nil)
	var passed atomic.Int64 // real time since the first request
	rig.Provider.KeyTTL = 24 * time.Hour
	rig.Provider.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	for _, c := range []struct {
		passed, shown time.Duration
		wants         string
	}{
		{passed: 11 * time.Hour, shown: 11 * time.Hour, wants: "completed"},
		{passed: 22 * time.Hour, shown: 11 * time.Hour, wants: "completed"}, // the database's clock is 11 h behind, almost half of the key's life
		{passed: 25 * time.Hour, shown: 14 * time.Hour, wants: "unknown"},   // as much behind, and the provider has forgotten the key
		{passed: 0, shown: 13 * time.Hour, wants: "unknown"},                // ahead: the status is unknown, although the provider still has the key
	} {
		clock.SetOff(0)
		passed.Store(0)
		run := rig.NewRun()
		rig.Step(run, 1, harness.Keyed)
		killed := rig.Start("DRAINER_FAILPOINTS=after_reply=kill")
		<-killed.Ended
		clock.SetOff(c.shown)
		passed.Store(int64(c.passed))
		next := rig.Start()
		rig.AwaitRest()
		if rig.Count(`SELECT count(*) FROM outbox.status WHERE agent_run_id = $1 AND status = $2`, run, c.wants) != 1 {
			t.Errorf("after %s, of which the clock shows %s, it is not %s", c.passed, c.shown, c.wants)
		}
		next.Terminate()
		fault.Injected(t, 32, 1)
	}
	rig.Check()
}

// The clock is set an hour back, and then two hours forward.
func TestAClockThatJumpsUnderLoadLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	clock := cluster.NewClock(t)
	server := cluster.Start(t, clock.Of())
	rig := harness.At(t, server.URL, nil)
	rig.Start()
	rig.Start()
	stop := rig.Agents(everyClass...)
	jumps := []time.Duration{-time.Hour, time.Hour}
	for _, to := range jumps {
		rig.AwaitMoreEffects(30)
		clock.SetOff(to)
	}
	rig.AwaitMoreEffects(30)
	stop()
	rig.AwaitRest()
	fault.Injected(t, 32, len(jumps))
	rig.Check()
	rig.CheckClaimed()
}

// The key's life and the time until the planned intent are short. A daemon that compared its own clock with the
// database's clock would take the key for forgotten or the intent for due.
func TestWorkersAnHourOffTheDatabaseMoveNothing(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"behind it": time.Hour, "ahead of it": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := cluster.NewClock(t)
			server := cluster.Start(t, clock.Of())
			clock.SetOff(off)
			rig := harness.At(t, server.URL, dispatchtest.Script(dispatchtest.ErrorAfter))
			rig.Reconfigure(func(config string) string { return strings.ReplaceAll(config, "ttl: 24h", "ttl: 1h") })
			rig.Exec(`SELECT outbox.enqueue('planned', '1', $1, 'order', '{"n": 1}', now() + interval '30 minutes')`, harness.Keyed)
			enqueueOfEach(rig, 5)
			takeBack(rig, "back")
			victim := rig.Start("DRAINER_FAILPOINTS=after_reply=kill@8")
			await(t, "the worker dies", victim.Ended)
			rig.Start()
			rig.Start()
			rig.AwaitCount("all that is due ends", 5*len(everyClass), `SELECT count(*) FROM outbox.status WHERE finished_at IS NOT NULL`)
			rig.AwaitCount("the run is rolled back", 1, `SELECT count(*) FROM outbox.saga WHERE agent_run_id = 'back' AND state = 'compensated'`)
			fault.Injected(t, 31, rig.Count(`SELECT count(*) FROM outbox.attempt`))
			if early := rig.Count(`SELECT count(*) FROM outbox.status WHERE agent_run_id = 'planned' AND attempts > 0`); early > 0 {
				t.Error("what was planned for later was claimed")
			}
			rig.Exec(`UPDATE outbox.queue SET next_attempt_at = now()`)
			rig.AwaitRest()
			rig.Check()
			if unknown := rig.Count(`SELECT count(*) FROM outbox.status WHERE status = 'unknown' AND tool_name <> $1`, harness.Once); unknown > 0 {
				t.Errorf("%d rows were taken for too old to be tried again", unknown)
			}
		})
	}
}

// A few seconds after the start an hour is skipped, or comes twice. One of the two daemons uses UTC.
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
			rig := harness.At(t, server.URL, nil)
			clock.SetOff(time.Until(change.Add(-6 * time.Second)))
			rig.Start()
			rig.Start("PGTZ=UTC")
			const planned = 6
			for n := range planned {
				rig.Exec(`SELECT outbox.enqueue('planned', $1, $2, 'order', '{"n": 1}', now() + $3 * interval '2 seconds')`,
					fmt.Sprint(n), harness.Keyed, n)
			}
			stop := rig.Agents(everyClass...)
			drainertest.Eventually(t, "the last one that was planned is done", func() bool {
				return rig.Count(`SELECT count(*) FROM outbox.status WHERE agent_run_id = 'planned' AND status = 'completed'`) == planned
			})
			stop()
			rig.AwaitRest()
			fault.Injected(t, 33, rig.Count(`SELECT count(*) FROM outbox.attempt WHERE finished_at > $1`, change))
			rig.Check()
			if wrong := rig.Count(`
				SELECT count(*) FROM history.transition t JOIN outbox.intent i ON i.id = t.intent_id
				WHERE i.agent_run_id = 'planned' AND t.place = 'claim' AND t.change = 'INSERT'
				AND t.at - coalesce(i.not_before, i.created_at) NOT BETWEEN '0 s' AND '10 min'`); wrong > 0 {
				t.Errorf("%d of %d intents were not claimed when they were due", wrong, planned)
			}
		})
	}
}

// After each leap every heartbeat looks an hour old, until its worker beats again.
func TestALeapOfTheDatabasesClockDeclaresNoLiveWorkerDead(t *testing.T) {
	t.Parallel()
	const fleet = 3
	clock := cluster.NewClock(t)
	server := cluster.Start(t, clock.Of())
	rig := harness.At(t, server.URL, nil)
	rig.Reconfigure(func(config string) string {
		return strings.ReplaceAll(config, "heartbeat: 200ms, lease: 1s", "heartbeat: 1s, lease: 3s")
	})
	for range fleet {
		rig.Start()
	}
	rig.AwaitCount("the workers are there", fleet, `SELECT count(*) FROM outbox.worker`)
	workers := drainertest.Column[string](t, rig.DB, `SELECT worker_id::text FROM outbox.worker`)
	stop := rig.Agents(everyClass...)
	for leap := range 6 {
		clock.SetOff(time.Duration(leap+1) * time.Hour)
		drainertest.Eventually(t, "all that are left have beaten again", func() bool {
			return rig.Count(`SELECT count(*) FROM outbox.worker WHERE beat_at < now() - interval '30 minutes'`) == 0
		})
		fault.Injected(t, 32, 1)
	}
	stop()
	rig.AwaitRest()
	if left := rig.Count(`SELECT count(*) FROM outbox.worker WHERE worker_id = ANY ($1::uuid[])`, workers); left != fleet {
		t.Errorf("%d of %d live workers were declared dead", fleet-left, fleet)
	}
	if lost := lost(rig); lost > 0 {
		t.Errorf("%d rows count as lost although no worker died", lost)
	}
	rig.Check()
}
