package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/cluster"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/internal/throwaway"
)

// everyClass has a tool of each class, and one whose run can be rolled back.
var everyClass = []string{harness.Keyed, harness.Set, harness.Once, harness.Asked, harness.Order}

// Agents and daemons work during each crash.
func TestACrashOfPostgresLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		number int
		crash  func(t *testing.T, server *throwaway.Server)
	}{
		"the server stops at once": {16, func(t *testing.T, server *throwaway.Server) { cluster.Restart(t, server) }},
		"a backend is killed":      {17, killABackend},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := cluster.Start(t)
			rig := harness.At(t, server.URL, nil)
			rig.Start(asDaemon)
			rig.Start(asDaemon)
			stop := rig.Agents(everyClass...)
			const crashes = 3
			for range crashes {
				rig.AwaitMoreEffects(20)
				test.crash(t, server)
			}
			rig.AwaitMoreEffects(20)
			stop()
			rig.AwaitRest()
			fault.Injected(t, test.number, crashes)
			rig.Check()
		})
	}
}

// asDaemon is the name under which Postgres knows a daemon's sessions.
const asDaemon = "PGAPPNAME=daemon"

// killABackend kills a backend that serves a daemon. Postgres cannot know what that backend did to shared memory,
// so it ends all backends and recovers.
func killABackend(t *testing.T, server *throwaway.Server) {
	t.Helper()
	started := cluster.Ask[time.Time](t, server, `SELECT max(backend_start) FROM pg_stat_activity WHERE backend_type = 'checkpointer'`)
	pid := cluster.Ask[int](t, server, `SELECT pid FROM pg_stat_activity WHERE application_name = 'daemon' ORDER BY state_change DESC LIMIT 1`)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	drainertest.Eventually(t, "Postgres has recovered", func() bool {
		conn, err := pgx.Connect(t.Context(), server.URL)
		if err != nil {
			return false
		}
		defer conn.Close(t.Context())
		var recovered bool
		err = conn.QueryRow(t.Context(), `SELECT backend_start > $1 FROM pg_stat_activity WHERE backend_type = 'checkpointer'`, started).Scan(&recovered)
		return err == nil && recovered
	})
}

// The daemon gets no reply to some of its commits, and every fifth agent gets no reply to its own. Half of these
// agents enqueue again.
func TestALostReplyOfACommitIsNeitherForgottenNorRepeated(t *testing.T) {
	t.Parallel()
	const intents, claims, others = 200, 5, 5
	rig := harness.New(t, nil)
	daemons, agents := pgproxy.New(t, rig.URL), pgproxy.New(t, rig.URL)
	daemons.Cuts.Store(claims)
	daemons.LostCommits.Store(others)
	db := drainertest.Connect(t, agents.Behind(t, rig.URL))
	enqueue := func(number int) history.Answer {
		intent := dispatch.Tuple{AgentRunID: fmt.Sprint("run-", number), StepID: "step", ToolName: everyClass[number%len(everyClass)], BusinessScope: "order"}
		return rig.Clients.Enqueue(context.Background(), db, intent, json.RawMessage(`{"n": 1}`))
	}
	rig.Reconfigure(withPatientLease)
	rig.Start("DATABASE_URL=" + daemons.Behind(t, rig.URL))
	unanswered := 0
	for number := range intents {
		if number%5 == 0 {
			agents.LostCommits.Store(1)
		}
		if enqueue(number) != history.NoAnswer {
			continue
		}
		unanswered++
		if again := number%2 == 0; again && enqueue(number) != history.Committed {
			t.Errorf("agent %d repeats itself and does not learn that the intent is there", number)
		}
	}
	rig.AwaitRest()
	missed := claims + others - int(max(0, daemons.Cuts.Load())+max(0, daemons.LostCommits.Load()))
	fault.Injected(t, 20, unanswered+missed)
	rig.Check()
	if unanswered != intents/5 || daemons.Cuts.Load() > 0 {
		t.Errorf("%d agents and %d commits of the daemon got no answer, want %d and %d", unanswered, missed, intents/5, claims+others)
	}
	if given := rig.Count(`SELECT count(*) FROM outbox.attempt WHERE outcome = 'released' AND error = 'reply_lost'`); given == 0 {
		t.Error("no claim without an answer was given back")
	}
	if lost := rig.Count(`SELECT count(*) FROM outbox.attempt WHERE outcome = 'lost'`); lost > 0 {
		t.Errorf("%d rows were lost, though their worker lived", lost)
	}
}

// promotedBehind promotes a standby that has no record of any request, and lacks some intents. Agents enqueue the
// lost intents again, and an operator accepts the loss.
var promotedBehind = scenario{number: 18, on: func(t *testing.T) (*harness.Rig, func() int) {
	primary := cluster.Start(t)
	standby := cluster.Standby(t, primary)
	line := pgproxy.New(t, primary.URL)
	rig := harness.At(t, line.Behind(t, primary.URL), nil)
	return rig, func() int {
		first := rig.Start()
		drainertest.Eventually(t, "a daemon has looked", func() bool { return rig.Count(`SELECT count(*) FROM outbox.history`) == 1 })
		first.Terminate()
		for _, tool := range everyClass {
			rig.Enqueue(tool, forgottenEach)
		}
		// A row in doubt without a lookup waits for 15 minutes after its commit.
		cluster.Exec(t, primary, `SET session_replication_role = replica; UPDATE outbox.intent SET created_at = created_at - interval '20 minutes'`)
		cluster.AwaitCaughtUp(t, primary, standby)
		cluster.Kill(t, standby)
		repeat := func() {
			for number := range forgottenEach {
				if answer := rig.Step("gone", number, harness.Keyed); answer != history.Committed {
					t.Fatalf("an agent's commit is %s", answer)
				}
			}
		}
		repeat()
		rig.Start()
		rig.AwaitRest()

		line.TakeDown()
		cluster.Kill(t, primary)
		cluster.Restart(t, standby)
		cluster.Exec(t, standby, `SELECT pg_promote()`)
		forgotten := cluster.Ask[int](t, standby, `SELECT count(*) FROM outbox.queue`)
		line.LeadTo(t, standby.URL)
		line.BringUp()
		rig.DB.Reset()
		repeat()
		drainertest.Eventually(t, "an incident is open, and what has a key went on", func() bool {
			return rig.Count(`SELECT count(*) FROM outbox.incident WHERE kind = 'history_changed' AND resolved_at IS NULL`) == 1 &&
				rig.Count(`SELECT count(*) FROM outbox.status WHERE tool_name IN ($1, $2) AND status <> 'completed'`, harness.Keyed, harness.Set) == 0
		})
		rig.Exec(`SELECT outbox.accept_history(max(id), false, 'operator:ann', 'compared') FROM outbox.history`)
		return forgotten + forgottenEach
	}
}}

const forgottenEach = 10

// undoForgotten rolls a run back with a tool that repeats its effect, and promotes a standby that has only the
// first step.
var undoForgotten = scenario{number: 18, on: func(t *testing.T) (*harness.Rig, func() int) {
	primary := cluster.Start(t)
	standby := cluster.Standby(t, primary)
	line := pgproxy.New(t, primary.URL)
	rig := harness.At(t, line.Behind(t, primary.URL), nil)
	rig.Reconfigure(func(config string) string {
		return strings.ReplaceAll(config, "compensate_with: {tool: refunds/cancel,", "compensate_with: {tool: "+harness.Asked+",")
	})
	return rig, func() int {
		rig.Start()
		rig.Step("run", 1, harness.Order)
		rig.AwaitCount("it is completed", 1, `SELECT count(*) FROM outbox.status WHERE status = 'completed'`)
		cluster.AwaitCaughtUp(t, primary, standby)
		cluster.Kill(t, standby)
		rig.Step("run", 2, harness.Declined)
		rig.AwaitCount("the run is rolled back", 1, `SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`)

		line.TakeDown()
		cluster.Kill(t, primary)
		cluster.Restart(t, standby)
		cluster.Exec(t, standby, `SELECT pg_promote()`)
		line.LeadTo(t, standby.URL)
		line.BringUp()
		rig.DB.Reset()
		rig.AwaitCount("an incident is open", 1, `SELECT count(*) FROM outbox.incident WHERE kind = 'history_changed' AND resolved_at IS NULL`)
		rig.Exec(`SELECT outbox.accept_history(max(id), false, 'operator:ann', 'compared') FROM outbox.history`)
		rig.Step("run", 2, harness.Declined)
		rig.AwaitCount("the run is rolled back again", 1, `SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`)
		return 1
	}
}}

func TestAnUndoThatWasForgottenIsNotDoneTwice(t *testing.T) {
	t.Parallel()
	undoForgotten.holds(t)
}

func TestWhatAPromotedStandbyForgotIsNotDoneTwice(t *testing.T) {
	t.Parallel()
	scenario := promotedBehind
	scenario.wrong = func(rig *harness.Rig) bool {
		return rig.Count(`SELECT count(*) FROM outbox.status WHERE status = 'unknown' AND tool_name = $1`, harness.Once) != forgottenEach ||
			rig.Count(`SELECT count(*) FROM outbox.status WHERE status = 'completed'`) != forgottenEach*len(everyClass)
	}
	scenario.holds(t)
}

// A proxy or a DNS name leads to a server that only reads, and later to the one that writes. A connection that was
// made in between must not stay at the first server.
func TestADaemonLeavesAServerThatOnlyReads(t *testing.T) {
	t.Parallel()
	primary := cluster.Start(t)
	standby := cluster.Standby(t, primary)
	rig := harness.At(t, primary.URL, nil)
	line := pgproxy.New(t, primary.URL)
	rig.Start("DATABASE_URL=" + line.Behind(t, primary.URL))
	stop := rig.Agents(everyClass...)
	rig.AwaitMoreEffects(20)

	line.LeadTo(t, standby.URL)
	line.TakeDown()
	line.BringUp()
	refused := 0
	drainertest.Eventually(t, "every pool of the daemon meets the server that only reads", func() bool {
		refused = cluster.Ask[int](t, standby, `SELECT xact_rollback FROM pg_stat_database WHERE datname = 'postgres'`)
		return refused >= 10
	})
	line.LeadTo(t, primary.URL)
	rig.AwaitMoreEffects(20)
	stop()
	rig.AwaitRest()
	fault.Injected(t, 19, refused)
	rig.Check()
}

const blocked = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

// Another session has written the attempt that the daemon is about to write, and then wants the claim that the daemon
// has locked. Postgres ends the daemon's transaction, because the other session has a longer deadlock_timeout.
func TestATurnThatDeadlocksIsRepeated(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, dispatchtest.Script(dispatchtest.HangAfter))
	rig.Reconfigure(patient)
	daemon := rig.Start("PGOPTIONS=-c deadlock_timeout=5s") // Postgres looks for a deadlock only once, so the deadlock must exist by then
	rig.Enqueue(harness.Keyed, 1)
	rig.AwaitEffects(1)
	other := begin(t, rig, `SET LOCAL deadlock_timeout = '10min'`)
	if _, err := other.Exec(t.Context(), `
		INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at)
		SELECT intent_ids[1], attempts[1], 'crossed', 'lost', 'pending', now() FROM outbox.claim`); err != nil {
		t.Fatal(err)
	}
	rig.Provider.Release()
	drainertest.Eventually(t, "the daemon waits for the attempt", func() bool { return rig.Count(blocked) == 1 })
	if _, err := other.Exec(t.Context(), `SELECT FROM outbox.claim FOR UPDATE`); err != nil {
		t.Fatal("the other session was to win: ", err)
	}
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	rig.AwaitRest()
	deadlocks := 0
	drainertest.Eventually(t, "Postgres counts the deadlock", func() bool {
		deadlocks = rig.Count(`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`)
		return deadlocks > 0
	})
	fault.Injected(t, 25, deadlocks)
	rig.Check()
	if log := daemon.Terminate(); strings.Count(log, "batch failed") < deadlocks { // each lane of the batch logs it
		t.Errorf("%d deadlocks, and the daemon says:\n%s", deadlocks, log)
	}
}

// conflicting makes Postgres refuse the first three writes of attempts, and the first three changes of a saga,
// like serialization failures.
const conflicting = `
	CREATE SEQUENCE conflict_attempt;
	CREATE SEQUENCE conflict_saga;
	CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF nextval('public.conflict_' || TG_TABLE_NAME) <= 3 THEN
			RAISE EXCEPTION 'could not serialize access' USING ERRCODE = 'serialization_failure';
		END IF;
		RETURN NULL;
	END $$;
	CREATE TRIGGER conflict AFTER INSERT ON outbox.attempt FOR EACH ROW EXECUTE FUNCTION conflict();
	CREATE TRIGGER conflict AFTER UPDATE ON outbox.saga FOR EACH ROW EXECUTE FUNCTION conflict()`

func TestTurnsAndSagasThatFailToSerializeAreRepeated(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	drainertest.Exec(t, rig.DB, conflicting)
	rig.Start()
	for range 3 {
		run := rig.NewRun()
		rig.Step(run, 1, harness.Order)
		rig.Step(run, 2, harness.Declined)
	}
	for _, tool := range everyClass {
		rig.Enqueue(tool, 5)
	}
	rig.AwaitRest()
	fault.Injected(t, 25, rig.Count(`SELECT least(a.last_value, 3) + least(s.last_value, 3) FROM conflict_attempt a, conflict_saga s`))
	rig.Check()
	if begun := rig.Count(`SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`); begun != 3 {
		t.Errorf("%d of 3 runs were rolled back", begun)
	}
}

// Another session changes a claim while a batch waits for it. With the role's default isolation, serializable, the
// batch would fail each time.
func TestARolesStricterIsolationFailsNothing(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, dispatchtest.Script(dispatchtest.HangAfter))
	rig.Reconfigure(patient)
	daemon := rig.Start("PGOPTIONS=-c default_transaction_isolation=serializable")
	rig.Enqueue(harness.Keyed, 1)
	rig.AwaitEffects(1)
	other := begin(t, rig, `UPDATE outbox.claim SET server = server`)
	rig.Provider.Release()
	conflicts := 0
	drainertest.Eventually(t, "the daemon waits for the claim", func() bool {
		conflicts = rig.Count(blocked)
		return conflicts > 0
	})
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	rig.AwaitRest()
	fault.Injected(t, 25, conflicts)
	rig.Check()
	if log := daemon.Terminate(); strings.Contains(log, "batch failed") {
		t.Errorf("a batch failed:\n%s", log)
	}
}

// begin opens the transaction of another session.
func begin(t *testing.T, rig *harness.Rig, sql string) pgx.Tx {
	t.Helper()
	tx := drainertest.Begin(t, rig.DB)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	drainertest.Exec(t, tx, sql)
	return tx
}

const listeners = `FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN outbox'`

// Each connection that listens is killed as soon as it listens, and all notifications are lost.
func TestRowsAreFoundWithoutAListener(t *testing.T) {
	t.Parallel()
	const kills = 2
	rig := harness.New(t, nil)
	line := pgproxy.New(t, rig.URL)
	line.DropNotifications.Store(true)
	rig.Start("DATABASE_URL=" + line.Behind(t, rig.URL))
	for range kills {
		drainertest.Eventually(t, "the daemon listens", func() bool { return rig.Count(`SELECT count(*) `+listeners) > 0 })
		rig.Exec(`SELECT pg_terminate_backend(pid) ` + listeners)
		for _, tool := range everyClass {
			rig.Enqueue(tool, 2)
		}
		rig.AwaitRest()
	}
	fault.Injected(t, 22, kills)
	rig.Check()
}

// detected bounds how long a connection that died silently may delay the work.
const detected = time.Minute

// Every connection of the only daemon becomes silent, while one of them has locked a saga. The daemon must give them
// up, and Postgres must release the lock.
func TestConnectionsThatFallSilentAreGivenUpByBothEnds(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	line := pgproxy.New(t, rig.URL)
	daemon := rig.Start("DATABASE_URL="+line.Behind(t, rig.URL), "DRAINER_FAILPOINTS=saga_locked=hold")
	run := rig.NewRun()
	rig.Step(run, 1, harness.Order)
	rig.Step(run, 2, harness.Declined)
	stop := rig.Agents(everyClass...)
	daemon.WaitFor("failpoint saga_locked hold")

	silent := line.Silence()
	began := time.Now()
	daemon.Signal(syscall.SIGUSR1)
	rig.AwaitMoreEffects(20)
	stop()
	rig.AwaitRest()
	took := time.Since(began)
	fault.Injected(t, 21, silent)
	rig.Check()
	t.Logf("%d connections, %.1f s until nothing was left to do", silent, took.Seconds())
	if took > detected {
		t.Errorf("it took %s until nothing was left to do, want less than %s", took, detected)
	}
}

// All rows together take longer than a batch may, and the lane has room for all of them.
func TestALinkTooSlowForAllThatIsDueCarriesItInPieces(t *testing.T) {
	t.Parallel()
	const intents = 14
	rig := harness.New(t, nil)
	payload := json.RawMessage(fmt.Sprintf(`{"n": 1, "text": %q}`, strings.Repeat("x", 1<<20-64))) // compressed, it is small
	for range intents {
		rig.Clients.Enqueue(t.Context(), rig.DB, harness.Intent(rig.NewRun(), 1, harness.Keyed), payload)
	}
	line := pgproxy.New(t, rig.URL)
	line.Bandwidth.Store(1 << 20)
	rig.Start("DATABASE_URL=" + line.Behind(t, rig.URL))
	rig.AwaitRest()
	fault.Injected(t, 77, 1)
	rig.Check()
	if most := line.Most.Load(); most > 6<<20 {
		t.Errorf("one reply had %d bytes", most)
	}
}
