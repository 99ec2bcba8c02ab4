package faults_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/internal/failpoint"
)

// A worker dies at each moment in the life of a row.
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
			scenario{number: number, play: func(t *testing.T, rig *harness.Rig) int { return killedAt(t, rig, moment) }}.holds(t)
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
		"of what cannot be repeated":                          killedHolding(harness.Once),
		"of what can be asked":                                killedHolding(harness.Asked),
		"and the next one refuses":                            refusedAfterADeath(harness.Keyed),
		"and the next refuses, but the provider can be asked": refusedAfterADeath(harness.Order),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.holds(t)
		})
	}
}

// A restarted process is a new worker, even with the same machine, program and configuration.
func TestAHostThatComesBackRecoversWhatItLeft(t *testing.T) {
	t.Parallel()
	hostRestarts.holds(t)
}

func killedAt(t *testing.T, rig *harness.Rig, moment failpoint.Point) (kills int) {
	t.Helper()
	enqueueOfEach(rig, 5)
	for range 3 {
		rig.Enqueue(harness.Keyed, 5) // so that the worker reaches the failpoint
		victim := rig.Start(arm(fmt.Sprintf("%s=kill", moment)))
		await(t, "the worker dies", victim.Ended)
		kills++
	}
	rig.Start()
	rig.AwaitRest()
	if wrong := rig.Count(`SELECT count(*) FROM outbox.status WHERE (status = 'unknown') IS DISTINCT FROM (tool_name = $1 AND intent_id IN (
		SELECT intent_id FROM outbox.attempt WHERE outcome = 'lost'))`, harness.Once); wrong > 0 {
		t.Errorf("%d intents are unknown though they can be repeated, or were repeated though they cannot", wrong)
	}
	return kills
}

// killedWhile makes every first request hang until the worker is dead.
func killedWhile(hang dispatchtest.Fault) scenario {
	return scenario{number: 3, plan: dispatchtest.Script(hang), play: func(t *testing.T, rig *harness.Rig) int {
		const each = 2
		rig.Reconfigure(func(config string) string { // no request may be given up before the kill
			return strings.ReplaceAll(config, "timeout: 1s", "timeout: 3s")
		})
		enqueueOfEach(rig, each)
		victim := rig.Start()
		rig.AwaitRequests(each * len(everyClass))
		victim.Kill()
		requests := inProgress(rig)
		rig.Provider.Release()
		rig.Start()
		return requests
	}}
}

// claims is a text that only the SQL of claims contains.
const claims = "INSERT INTO outbox.claim"

// killedBeforeItsClaimWasCommitted kills a worker as soon as the provider has its request. The provider must not
// get one while the claim's commit is held back.
var killedBeforeItsClaimWasCommitted = scenario{number: 3, plan: dispatchtest.Script(dispatchtest.HangAfter), play: func(t *testing.T, rig *harness.Rig) int {
	rig.Reconfigure(onceAlone)
	rig.Enqueue(harness.Once, 1)
	proxy := pgproxy.New(t, rig.URL)
	held := proxy.HoldCommits(claims)
	victim := rig.Start("DATABASE_URL=" + proxy.Behind(t, rig.URL))
	await(t, "a claim is made", held.Caught)
	if !sendsWhileItBeats(t, rig) {
		held.Release()
		rig.AwaitRequests(1)
	}
	victim.Kill()
	rig.Provider.Release()
	rig.Start()
	return rig.Provider.Ledger.Audit().TotalRequests()
}}

// onceAlone leaves only one provider, so that the first claim has its row.
func onceAlone(config string) string {
	before, providers, _ := strings.Cut(config, "  keyed:\n")
	_, once, _ := strings.Cut(providers, "  once:\n")
	once, _, _ = strings.Cut(once, "  asked:\n")
	return before + "  once:\n" + once
}

// sendsWhileItBeats gives the only worker the time of a few heartbeats, which is enough for a hundred requests.
func sendsWhileItBeats(t *testing.T, rig *harness.Rig) (sends bool) {
	t.Helper()
	beats := map[time.Time]bool{}
	drainertest.Eventually(t, "it sends, or beats on", func() bool {
		var beat time.Time
		switch err := rig.DB.QueryRow(t.Context(), `SELECT beat_at FROM outbox.worker`).Scan(&beat); {
		case err == nil:
			beats[beat] = true
		case !errors.Is(err, pgx.ErrNoRows): // it has lost its lease, and is about to join again
			t.Fatal(err)
		}
		sends = rig.Provider.Ledger.Audit().TotalRequests() > 0
		return sends || len(beats) > 4
	})
	return sends
}

// killedHolding kills a worker that has the outcome of its only row.
func killedHolding(tool string) scenario {
	return scenario{number: 4, play: func(t *testing.T, rig *harness.Rig) int { return killedWithAReply(t, rig, tool) }}
}

// refusedAfterADeath makes the provider refuse an effect that it has applied before. Such a refusal says nothing
// about the first attempt.
func refusedAfterADeath(tool string) scenario {
	s := killedHolding(tool)
	s.plan = dispatchtest.Script(dispatchtest.None, dispatchtest.Declined)
	return s
}

func killedWithAReply(t *testing.T, rig *harness.Rig, tool string) (rows int) {
	t.Helper()
	rig.Enqueue(tool, 1)
	victim := rig.Start(arm("after_reply=kill"))
	await(t, "the worker dies", victim.Ended)
	rows = inProgress(rig)
	rig.Start()
	return rows
}

// hostRestarts restarts each worker at once, while the lease of the worker before it still runs.
var hostRestarts = scenario{number: 12, play: func(t *testing.T, rig *harness.Rig) (restarts int) {
	for _, tool := range everyClass {
		rig.Enqueue(tool, 1)
		victim := rig.Start(arm("after_reply=kill"))
		await(t, "the worker dies", victim.Ended)
		restarts++
	}
	rig.Start()
	return restarts
}}

func TestAWorkerWhoseHeartbeatsFailStopsSendingAndStartsOver(t *testing.T) {
	t.Parallel()
	heartbeatsFail.holds(t)
}

func TestAWorkerWhoseHeartbeatHangsSendsNothingOnceItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	heartbeatHangs.holds(t)
}

// heartbeatsFail fails the heartbeats of a worker whose requests hang, so that it loses its lease while they are
// under way.
var heartbeatsFail = scenario{number: 11, plan: dispatchtest.Script(dispatchtest.HangAfter), play: func(t *testing.T, rig *harness.Rig) int {
	enqueueOfEach(rig, 3)
	silent := rig.Start(arm("heartbeat=fail@*"))
	for range 3 {
		silent.WaitFor("lease lost")
		silent.WaitFor(`"msg":"joined"`)
	}
	rig.Provider.Release()
	silent.Kill()
	rig.Start()
	return failedBeats(silent)
}}

// heartbeatHangs makes a heartbeat hang in a worker that is also slow. Before this worker sends, a lookup has told
// other workers that nothing happened. Any reply would kill this worker.
var heartbeatHangs = scenario{number: 11, play: func(_ *testing.T, rig *harness.Rig) int {
	rig.Enqueue(harness.Asked, 3)
	slow := rig.Start(arm("heartbeat=hang@2,claim_committed=hold,after_reply=kill"))
	slow.WaitFor("failpoint claim_committed hold")
	rig.Start()
	rig.AwaitRest()
	slow.Signal(syscall.SIGUSR1)
	slow.ReadTo("an outcome came after its lease was lost")
	return lost(rig)
}}

func failedBeats(d *program.Daemon) int { return strings.Count(d.Log(), "failpoint heartbeat fail") }

func TestAWorkerSuspendedPastItsLeaseIsFencedOut(t *testing.T) {
	t.Parallel()
	for name, suspended := range map[string]scenario{
		"with one reply":                       suspendedWithAReply,
		"with the reply of a tool with lookup": suspendedWithALookup,
		"with all other kinds of rows":         suspendedWithReplies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			suspended.holds(t)
		})
	}
}

func TestAWorkerSuspendedBetweenGateAndSendDoublesNothing(t *testing.T) {
	t.Parallel()
	suspendedBeforeItSends.holds(t)
}

var (
	suspendedWithAReply = scenario{number: 7, play: func(_ *testing.T, rig *harness.Rig) int {
		rig.Enqueue(harness.Keyed, 1)
		return suspended(rig, "after_reply=stop")
	}}
	suspendedWithALookup = scenario{number: 7, play: func(_ *testing.T, rig *harness.Rig) int {
		rig.Enqueue(harness.Asked, 1)
		return suspended(rig, "after_reply=stop")
	}}
	suspendedWithReplies = scenario{number: 7, play: func(_ *testing.T, rig *harness.Rig) int {
		enqueueWithoutLookup(rig)
		return suspended(rig, "after_reply=stop@3")
	}}
	suspendedBeforeItSends = scenario{number: 8, play: func(_ *testing.T, rig *harness.Rig) int {
		enqueueWithoutLookup(rig)
		return suspended(rig, "before_send=stop@3")
	}}
)

// enqueueWithoutLookup leaves out the tool that only a lookup protects. When a worker is frozen, its requests may
// be under way, and one that arrives after the lookup's answer is not covered.
func enqueueWithoutLookup(rig *harness.Rig) {
	for _, tool := range everyClass {
		if tool != harness.Asked {
			rig.Enqueue(tool, 3)
		}
	}
}

// suspended makes a worker continue after others have settled its rows.
func suspended(rig *harness.Rig, points string) (rows int) {
	late := rig.Start(arm(points))
	late.WaitFor("failpoint")
	rig.Start()
	rig.AwaitRest()
	rows = lost(rig)
	late.Signal(syscall.SIGCONT)
	late.WaitFor("lease lost")
	late.WaitFor(`"msg":"joined"`)
	return rows
}

func TestATerminatedWorkerEndsWhatIsInFlightAndLeaves(t *testing.T) {
	t.Parallel()
	terminatedAtWork.holds(t)
}

func TestAWorkerThatIsTerminatedTwiceEndsAtOnceAndOthersRecover(t *testing.T) {
	t.Parallel()
	terminatedTwice.holds(t)
}

var terminatedAtWork = scenario{number: 9, plan: dispatchtest.Always(dispatchtest.Slow), play: func(t *testing.T, rig *harness.Rig) int {
	rig.Reconfigure(steady)
	rig.Provider.SlowFor = 200 * time.Millisecond
	enqueueOfEach(rig, 40)
	leaving := rig.Start()
	rig.AwaitEffects(20)
	inFlight := inProgress(rig)
	leaving.Terminate()
	for what, sql := range map[string]string{
		"attempts were cut short":      `SELECT count(*) FROM outbox.attempt WHERE outcome NOT IN ('completed', 'released')`,
		"claims are left":              `SELECT count(*) FROM outbox.claim`,
		"workers are left":             `SELECT count(*) FROM outbox.worker`,
		"rows lost a try for nothing":  `SELECT count(*) FROM outbox.queue WHERE tries > 0 OR maybe_applied`,
		"rows are not due immediately": `SELECT count(*) FROM outbox.queue WHERE next_attempt_at > now()`,
	} {
		if found := rig.Count(sql); found != 0 {
			t.Errorf("%d %s", found, what)
		}
	}
	rig.Start()
	return inFlight
}}

// terminatedTwice does not wait for a dispatch that would never end.
var terminatedTwice = scenario{number: 10, play: func(t *testing.T, rig *harness.Rig) int {
	enqueueOfEach(rig, 2)
	leaving := rig.Start(arm("after_reply=hold"))
	leaving.WaitFor("failpoint after_reply hold")
	leaving.Signal(syscall.SIGTERM)
	leaving.WaitFor(`"msg":"shutting down"`)
	leaving.Signal(syscall.SIGTERM)
	await(t, "the worker ends", leaving.Ended)
	if leaving.ExitCode() != -1 {
		t.Errorf("the worker ended with %d, before the second signal could end it", leaving.ExitCode())
	}
	rig.Start()
	return 1
}}

func TestARowThatIsSettledWhileItIsReapedEndsOnce(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]scenario{
		"the reaper has locked the claim":                 reapedFirst(failpoint.ClaimsLocked, harness.Keyed),
		"the reaper has read the claim":                   reapedFirst(failpoint.ClaimsRead, harness.Keyed),
		"the reaper has locked what cannot be sent again": reapedFirst(failpoint.ClaimsLocked, harness.Once),
		"the worker has yet to commit":                    settledWhileItIsReaped,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.holds(t)
		})
	}
}

// reapedFirst makes a worker settle a row whose claim a reaper has locked. The evidence of its effect must not be
// lost.
func reapedFirst(moment failpoint.Point, tool string) scenario {
	return scenario{number: 13, play: func(t *testing.T, rig *harness.Rig) int {
		rig.Enqueue(tool, 1)
		late := rig.Start(arm("after_reply=stop"))
		late.WaitFor("failpoint")
		reaper := rig.Start(arm(string(moment) + "=hold"))
		reaper.WaitFor("failpoint")
		late.Signal(syscall.SIGCONT)
		drainertest.Eventually(t, "the settlement waits for the reaper", func() bool { return waits(rig, settlements) })
		reaper.Signal(syscall.SIGUSR1)
		rig.AwaitCount("the effect is on record", 1, `SELECT count(*) FROM outbox.status WHERE status = 'completed'`)
		return 1
	}}
}

// settledWhileItIsReaped makes a reaper read a claim of two rows while the settlement of one row is made and not
// committed yet.
var settledWhileItIsReaped = scenario{
	number: 13,
	plan: dispatchtest.ScriptKeys(map[string][]dispatchtest.Fault{
		harness.Intent("hangs", 1, harness.Keyed).IdempotencyKey(): {dispatchtest.HangBefore},
		harness.Intent("hangs", 1, harness.Set).IdempotencyKey():   {dispatchtest.HangBefore},
	}),
	play: func(t *testing.T, rig *harness.Rig) int {
		rig.Reconfigure(patient)
		rig.Step("ends", 1, harness.Keyed)
		rig.Step("hangs", 1, harness.Keyed)
		rig.Step("hangs", 1, harness.Set)
		proxy := pgproxy.New(t, rig.URL)
		late := rig.Start(arm("after_reply=hold"), "DATABASE_URL="+proxy.Behind(t, rig.URL))
		late.WaitFor("failpoint")
		// A held settlement blocks its lane, and unsent rows of this lane might never be sent. So the commits are
		// held only now.
		rig.AwaitRequests(3)
		settling := proxy.HoldCommits(settlements)
		late.Signal(syscall.SIGUSR1)
		await(t, "a settlement is made", settling.Caught)
		late.Signal(syscall.SIGSTOP)
		before := lost(rig)
		rig.Start()
		drainertest.Eventually(t, "a reaper came by", func() bool { return lost(rig) > before || waits(rig, reaping) })
		settling.Release()
		rig.Provider.Release()
		late.Signal(syscall.SIGCONT)
		return 1
	},
}

// Each text is near the start of one statement, and in no other statement.
const (
	settlements = "WITH fence AS"
	reaping     = "NOT EXISTS (SELECT FROM outbox.worker w"
)

// waits reports whether a statement with that text waits for a lock.
func waits(rig *harness.Rig, text string) bool {
	return rig.Count(`SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND strpos(query, $1) > 0`, text) > 0
}

// The seed comes from CHAOS_SEED, if that is set.
func TestReplicasThatAreKilledAtRandomLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	const kills = 8
	seed := chaosSeed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	rig := harness.New(t, dispatchtest.Random(seed, map[dispatchtest.Fault]float64{
		dispatchtest.ErrorAfter: 0.01, dispatchtest.DropBefore: 0.01, dispatchtest.DropAfter: 0.01,
	}))
	stop := rig.Agents(everyClass...)
	replicas := []*program.Daemon{rig.Start(), rig.Start(), rig.Start()}
	for kill := range kills {
		takeBack(rig, fmt.Sprintf("back-%d", kill))
		rig.AwaitMoreEffects(1 + random.IntN(40))
		victim := random.IntN(len(replicas))
		replicas[victim].Kill()
		replicas[victim] = rig.Start()
	}
	// Each of these kills may have met a daemon without work.
	stopAtWork(t, rig, replicas)
	for i := range replicas {
		replicas[i].Kill()
		replicas[i] = rig.Start()
	}
	awaitWorkOfEach(t, rig, len(replicas))
	stop()
	rig.AwaitRest()
	fault.Injected(t, 6, kills+len(replicas))
	if lost(rig) == 0 {
		t.Error("no kill met a row in progress, so nothing was shown")
	}
	rig.Check()
	rig.CheckClaimed()
}

// stopAtWork suspends all daemons at a moment when they hold rows.
func stopAtWork(t *testing.T, rig *harness.Rig, daemons []*program.Daemon) {
	t.Helper()
	signal := func(signal syscall.Signal) {
		for _, daemon := range daemons {
			daemon.Signal(signal)
		}
	}
	settles := func() bool {
		return rig.Count(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND state <> 'idle' AND strpos(query, $1) > 0`, settlements) > 0
	}
	drainertest.Eventually(t, "the daemons are stopped with rows in progress", func() bool {
		signal(syscall.SIGSTOP)
		if !settles() && inProgress(rig) > 0 {
			return true
		}
		signal(syscall.SIGCONT)
		return false
	})
}

// takeBack enqueues a run that will be rolled back.
func takeBack(rig *harness.Rig, run string) {
	rig.Step(run, 1, harness.Order)
	rig.Step(run, 2, harness.Order)
	rig.Step(run, 3, harness.Declined)
}

// awaitWorkOfEach returns once each replica has completed a few more rows.
func awaitWorkOfEach(t *testing.T, rig *harness.Rig, replicas int) {
	t.Helper()
	healed := drainertest.Value[time.Time](t, rig.DB, `SELECT clock_timestamp()`)
	drainertest.Eventually(t, "each replica completes a few rows", func() bool {
		return rig.Count(`
			SELECT count(*) FROM outbox.worker w WHERE 5 <= (
			  SELECT count(*) FROM outbox.attempt a
			  WHERE a.worker = w.worker_id::text AND a.outcome = 'completed' AND a.started_at > $1)`, healed) == replicas
	})
}

// chaosSeed returns the seed of a run, and logs it so that the run can be repeated.
func chaosSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if given := os.Getenv("CHAOS_SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("CHAOS_SEED: %v", err)
		}
	}
	t.Logf("CHAOS_SEED=%d", seed)
	return seed
}
