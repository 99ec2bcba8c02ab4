package faults_test

import (
	"syscall"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/world"
	"github.com/agentoutbox/drainer/internal/failpoint"
)

func TestARowThatIsSettledWhileItIsReapedEndsOnce(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]scenario{
		"the reaper has locked the claim":                 reapedFirst(failpoint.ClaimsLocked, world.Keyed),
		"the reaper has read the claim":                   reapedFirst(failpoint.ClaimsRead, world.Keyed),
		"the reaper has locked what cannot be sent again": reapedFirst(failpoint.ClaimsLocked, world.Once),
		"the worker has yet to commit":                    settledWhileItIsReaped,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.holds(t)
		})
	}
}

// reapedFirst has a worker settle a row whose claim a reaper has locked. That it
// had its effect must not be lost.
func reapedFirst(moment failpoint.Point, tool string) scenario {
	return scenario{number: 13, play: func(t *testing.T, w *world.World) int {
		w.Enqueue(tool, 1)
		late := w.Start(arm("after_reply=stop"))
		late.WaitFor("failpoint")
		reaper := w.Start(arm(string(moment) + "=hold"))
		reaper.WaitFor("failpoint")
		late.Signal(syscall.SIGCONT)
		drainertest.Eventually(t, "the settlement waits for the reaper", func() bool { return waits(w, settlements) })
		reaper.Signal(syscall.SIGUSR1)
		w.AwaitCount("the effect is on record", 1, `SELECT count(*) FROM outbox.status WHERE status = 'completed'`)
		return 1
	}}
}

// settledWhileItIsReaped has a reaper come while a settlement is made and not
// yet committed, of one of two rows of a claim.
var settledWhileItIsReaped = scenario{
	number: 13,
	plan: dispatchtest.ScriptKeys(map[string][]dispatchtest.Fault{
		world.Intent("hangs", 1, world.Keyed).IdempotencyKey(): {dispatchtest.HangBefore},
		world.Intent("hangs", 1, world.Set).IdempotencyKey():   {dispatchtest.HangBefore},
	}),
	play: func(t *testing.T, w *world.World) int {
		w.Step("ends", 1, world.Keyed)
		w.Step("hangs", 1, world.Keyed)
		w.Step("hangs", 1, world.Set)
		proxy := pgproxy.New(t, w.URL)
		settling := proxy.HoldCommits(settlements)
		late := w.Start("DATABASE_URL=" + proxy.Behind(t, w.URL))
		await(t, "a settlement is made", settling.Caught)
		awaitRequests(t, w, 3)
		late.Signal(syscall.SIGSTOP)
		w.Start()
		drainertest.Eventually(t, "a reaper came by", func() bool { return lost(w) == 1 || waits(w, reaping) })
		settling.Release()
		w.Provider.Release()
		late.Signal(syscall.SIGCONT)
		return 1
	},
}

// Each is in one statement, near its start, and nowhere else.
const (
	settlements = "WITH fence AS"
	reaping     = "NOT EXISTS (SELECT FROM outbox.worker w"
)

// waits reports whether a statement with that text waits for another's lock.
func waits(w *world.World, text string) bool {
	return w.Count(`SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND strpos(query, $1) > 0`, text) > 0
}
