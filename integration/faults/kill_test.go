package faults_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/world"
	"github.com/agentoutbox/drainer/internal/failpoint"
)

// Each moment of a row's journey at which its worker may die.
func TestAWorkerKilledAtAnyMomentLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for number, moment := range map[int]failpoint.Point{
		1: failpoint.ClaimCommitted,
		2: failpoint.BeforeSend,
		4: failpoint.AfterReply,
		5: failpoint.SettleCommitted,
	} {
		t.Run(string(moment), func(t *testing.T) {
			t.Parallel()
			scenario{number: number, play: func(t *testing.T, w *world.World) int { return killedAt(t, w, moment) }}.holds(t)
		})
	}
}

func TestAWorkerKilledWhileTheProviderHasTheRequestDoublesNothing(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]scenario{
		"before the effect":                 killedWhile(dispatchtest.HangBefore),
		"after the effect":                  killedWhile(dispatchtest.HangAfter),
		"and its claim's commit comes late": killedBeforeItsClaimWasCommitted,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.holds(t)
		})
	}
}

func TestAReplyThatDiesWithItsWorkerLeavesDoubt(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]scenario{
		"of what cannot be repeated":                          killedHolding(world.Once),
		"of what can be asked":                                killedHolding(world.Asked),
		"and the next one refuses":                            refusedAfterADeath(world.Keyed),
		"and the next refuses, but the provider can be asked": refusedAfterADeath(world.Order),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.holds(t)
		})
	}
}

// The same machine, program and configuration are a new worker all the same.
func TestAHostThatComesBackRecoversWhatItLeft(t *testing.T) {
	t.Parallel()
	hostRestarts.holds(t)
}

func killedAt(t *testing.T, w *world.World, moment failpoint.Point) (kills int) {
	t.Helper()
	enqueueOfEach(w, 5)
	for range 3 {
		w.Enqueue(world.Keyed, 5) // so that there is something to die of
		victim := w.Start(arm(fmt.Sprintf("%s=kill", moment)))
		await(t, "the worker dies", victim.Ended)
		kills++
	}
	w.Start()
	return kills
}

// killedWhile has every first request hang until the worker is dead.
func killedWhile(hang dispatchtest.Fault) scenario {
	return scenario{number: 3, plan: dispatchtest.Script(hang), play: func(t *testing.T, w *world.World) int {
		const each = 2
		w.Reconfigure(func(config string) string { // none is to be given up before the kill
			return strings.ReplaceAll(config, "timeout: 1s", "timeout: 3s")
		})
		enqueueOfEach(w, each)
		victim := w.Start()
		awaitRequests(t, w, each*len(everyClass))
		victim.Kill()
		requests := inProgress(w)
		w.Provider.Release()
		w.Start()
		return requests
	}}
}

// claims is in the SQL that claims, and nowhere else.
const claims = "INSERT INTO outbox.claim"

// killedBeforeItsClaimWasCommitted kills a worker as soon as the provider has
// its request, which is not to happen while the claim's commit is kept back.
var killedBeforeItsClaimWasCommitted = scenario{number: 3, plan: dispatchtest.Script(dispatchtest.HangAfter), play: func(t *testing.T, w *world.World) int {
	w.Reconfigure(onceAlone)
	w.Enqueue(world.Once, 1)
	proxy := pgproxy.New(t, w.URL)
	held := proxy.HoldCommits(claims)
	victim := w.Start("DATABASE_URL=" + proxy.Behind(t, w.URL))
	await(t, "a claim is made", held.Caught)
	if !sendsWhileItBeats(t, w) {
		held.Release()
		awaitRequests(t, w, 1)
	}
	victim.Kill()
	w.Provider.Release()
	w.Start()
	return w.Provider.Ledger.Audit().TotalRequests()
}}

// onceAlone leaves one provider, so that the first claim is that of its row.
func onceAlone(config string) string {
	before, providers, _ := strings.Cut(config, "  keyed:\n")
	_, once, _ := strings.Cut(providers, "  once:\n")
	once, _, _ = strings.Cut(once, "  asked:\n")
	return before + "  once:\n" + once
}

// sendsWhileItBeats gives the only worker the time of a few heartbeats: enough
// for a hundred requests.
func sendsWhileItBeats(t *testing.T, w *world.World) (sends bool) {
	t.Helper()
	beats := map[time.Time]bool{}
	drainertest.Eventually(t, "it sends, or beats on", func() bool {
		var beat time.Time
		switch err := w.DB.QueryRow(t.Context(), `SELECT beat_at FROM outbox.worker`).Scan(&beat); {
		case err == nil:
			beats[beat] = true
		case !errors.Is(err, pgx.ErrNoRows): // it has lost its lease, and is about to join again
			t.Fatal(err)
		}
		sends = w.Provider.Ledger.Audit().TotalRequests() > 0
		return sends || len(beats) > 4
	})
	return sends
}

// killedHolding kills a worker that knows the outcome of its only row.
func killedHolding(tool string) scenario {
	return scenario{number: 4, play: func(t *testing.T, w *world.World) int { return killedWithAReply(t, w, tool) }}
}

// refusedAfterADeath has the provider refuse what it has done before: that is no
// word about the first time.
func refusedAfterADeath(tool string) scenario {
	s := killedHolding(tool)
	s.plan = dispatchtest.Script(dispatchtest.None, dispatchtest.Declined)
	return s
}

func killedWithAReply(t *testing.T, w *world.World, tool string) (rows int) {
	t.Helper()
	w.Enqueue(tool, 1)
	victim := w.Start(arm("after_reply=kill"))
	await(t, "the worker dies", victim.Ended)
	rows = inProgress(w)
	w.Start()
	return rows
}

// hostRestarts brings each worker back at once, while the lease of the one
// before it still runs.
var hostRestarts = scenario{number: 12, play: func(t *testing.T, w *world.World) (restarts int) {
	for _, tool := range everyClass {
		w.Enqueue(tool, 1)
		victim := w.Start(arm("after_reply=kill"))
		await(t, "the worker dies", victim.Ended)
		restarts++
	}
	w.Start()
	return restarts
}}

func awaitRequests(t *testing.T, w *world.World, requests int) {
	t.Helper()
	drainertest.Eventually(t, "the provider has the requests", func() bool { return w.Provider.Ledger.Audit().TotalRequests() >= requests })
}
