package faults_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/history"
	"github.com/agentoutbox/drainer/integration/program"
)

// Each run is rolled back three times at once: by two refusals, which two daemons have received and not yet settled,
// and by an operator.
func TestARunThatIsTakenBackThriceGoesBackOnce(t *testing.T) {
	t.Parallel()
	const runs = 8
	rig := harness.New(t, nil)
	first := rig.Start()
	for run := range runs {
		rig.Step(name(run), 1, harness.Order)
		rig.Step(name(run), 2, harness.Order)
	}
	rig.AwaitRest()
	first.Terminate()

	requests := rig.Provider.Ledger.Audit().TotalRequests()
	daemons := []*program.Daemon{rig.Start(arm("after_reply=hold@*"))}
	for run := range runs {
		rig.Step(name(run), 3, harness.Declined)
	}
	rig.Enqueue(harness.Order, runs) // they fill the first daemon's concurrency, so the next refusals go to the other one
	rig.AwaitRequests(requests + 2*runs)
	daemons = append(daemons, rig.Start(arm("after_reply=hold@*")))
	for run := range runs {
		rig.Step(name(run), 4, harness.Declined)
	}
	rig.AwaitRequests(requests + 3*runs)
	var operators sync.WaitGroup
	for run := range runs {
		operators.Go(func() {
			output, err := rig.Program.Command("runs", "cancel", name(run), "--compensate", "--operator", "ann", "--reason", "wrong order").CombinedOutput()
			if err != nil && !strings.Contains(string(output), "takes no further step already") {
				t.Errorf("%v: %s", err, output)
			}
		})
	}
	rig.AwaitCount("the first operator took a run back", 1, `SELECT count(*) FROM outbox.saga`)
	for _, daemon := range daemons {
		daemon.Signal(syscall.SIGUSR1)
	}
	operators.Wait()
	rig.AwaitRest()

	refusals := rig.Count(`SELECT count(*) FROM outbox.status WHERE status = 'failed'`)
	fault.Injected(t, 53, refusals+runs-rig.Count(`SELECT count(*) FROM outbox.saga`))
	if undone := rig.Count(`SELECT count(*) FROM outbox.status WHERE status = 'compensated'`); undone != 2*runs {
		t.Errorf("%d orders are undone, want %d", undone, 2*runs)
	}
	rig.Check()
}

func name(run int) string { return fmt.Sprintf("purchase-%d", run+1) }

// sagaMoment is a moment in the rollback of a run at which something else happens.
type sagaMoment struct {
	failpoints string
	await      func(*harness.Rig, *program.Daemon)
	goOn       func(*program.Daemon)
}

var sagaMoments = map[string]sagaMoment{
	"before the plan": {
		failpoints: "saga_locked=hold@*",
		await:      func(_ *harness.Rig, daemon *program.Daemon) { daemon.WaitFor("failpoint saga_locked hold") },
		goOn:       func(daemon *program.Daemon) { daemon.Signal(syscall.SIGUSR1) },
	},
	"after a plan": {
		await: func(rig *harness.Rig, _ *program.Daemon) {
			rig.AwaitCount("a pass has waited for what is in flight", 1, `SELECT count(*) FROM outbox.saga WHERE passes = 0 AND moves_at > begun_at`)
		},
		goOn: func(*program.Daemon) {},
	},
}

// Orders are in flight while another step of their run is refused.
func TestAStepThatEndsWhileItsSagaBeginsIsUndone(t *testing.T) {
	t.Parallel()
	const orders = 4
	for name, moment := range sagaMoments {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig := harness.New(t, answeringLate("run-1", orders))
			rig.Reconfigure(patient)
			daemon := rig.Start("DRAINER_FAILPOINTS=" + moment.failpoints)
			for step := range orders {
				rig.Step("run-1", step+1, harness.Order)
			}
			rig.AwaitEffects(orders)
			rig.Step("run-1", orders+1, harness.Declined)
			moment.await(rig, daemon)
			rig.Start() // it also tries to roll back the run

			open := rig.Count(`SELECT count(*) FROM outbox.status WHERE tool_name = $1 AND finished_at IS NULL`, harness.Order)
			rig.Provider.Release()
			rig.AwaitCount("the orders end while their saga is under way", orders, `SELECT count(*) FROM outbox.attempt WHERE status = 'completed' AND intent_id IN (SELECT id FROM outbox.intent WHERE compensates IS NULL)`)
			moment.goOn(daemon)
			rig.AwaitRest()

			fault.Injected(t, 54, open)
			if undone := rig.Count(`SELECT count(*) FROM outbox.status WHERE status = 'compensated'`); undone != orders {
				t.Errorf("%d orders are undone, want all %d", undone, orders)
			}
			rig.Check()
		})
	}
}

// answeringLate applies the effect of the run's first orders, and answers once the test allows it.
func answeringLate(run string, orders int) dispatchtest.Plan {
	late := map[string][]dispatchtest.Fault{}
	for step := range orders {
		intent := dispatch.Tuple{AgentRunID: run, StepID: fmt.Sprintf("step-%d", step+1), ToolName: harness.Order, BusinessScope: "order"}
		late[intent.IdempotencyKey()] = []dispatchtest.Fault{dispatchtest.HangAfter}
	}
	return dispatchtest.ScriptKeys(late)
}

func TestALongTransactionThatCommitsLateIsDrained(t *testing.T) {
	t.Parallel()
	commitsLate.holds(t)
}

func TestAStepThatCommitsAfterItsRunWentBackIsNotSent(t *testing.T) {
	t.Parallel()
	stepSlipsIn.holds(t)
}

// commitsLate commits intents whose ids and due times are before those of intents that have been drained
// meanwhile.
var commitsLate = scenario{number: 29, play: func(t *testing.T, rig *harness.Rig) (late int) {
	rig.Start()
	open := make(chan struct{})
	answers := make(chan history.Answer)
	for _, tool := range everyClass {
		enqueued := make(chan struct{})
		agent := slowAgent{connect(t, rig), enqueued, open}
		go func() { answers <- rig.StepOf(agent, "late", 1, tool) }()
		<-enqueued
		late++
	}
	enqueueOfEach(rig, 50)
	rig.AwaitRest()
	close(open)
	for range late {
		if answer := <-answers; answer != history.Committed {
			t.Fatalf("a late transaction was %s", answer)
		}
	}
	return late
}}

// connect returns an agent's own connection.
func connect(t *testing.T, rig *harness.Rig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), rig.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// slowAgent is an agent that waits before it commits.
type slowAgent struct {
	history.Beginner
	enqueued chan<- struct{} // closed when only the commit is left
	until    <-chan struct{}
}

func (a slowAgent) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := a.Beginner.Begin(ctx)
	return slowCommit{tx, a}, err
}

type slowCommit struct {
	pgx.Tx
	agent slowAgent
}

func (c slowCommit) Commit(ctx context.Context) error {
	close(c.agent.enqueued)
	<-c.agent.until
	return c.Tx.Commit(ctx)
}

// stepSlipsIn enqueues a step in a transaction that began before its run was rolled back, and does not see the
// rollback.
var stepSlipsIn = scenario{number: 55, play: func(t *testing.T, rig *harness.Rig) int {
	rig.Start()
	rig.Step("run", 1, harness.Order)
	rig.AwaitRest()
	unaware, err := rig.DB.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	drainertest.Exec(t, unaware, `SELECT FROM outbox.saga`) // takes the snapshot
	rig.Step("run", 2, harness.Declined)
	drainertest.Eventually(t, "the run is rolled back", func() bool {
		return rig.Count(`SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`) == 1
	})
	if answer := rig.StepOf(begun{unaware}, "run", 3, harness.Order); answer != history.Committed {
		t.Fatalf("the step that slips in was %s", answer)
	}
	return 1
}}

// begun is the open transaction of an agent.
type begun struct{ pgx.Tx }

func (b begun) Begin(context.Context) (pgx.Tx, error) { return b.Tx, nil }

func TestWhoDidAStepAndWhenDecidesHowItIsUndone(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]scenario{
		"the window counts from the first try": undoneTooLate,
		"an operator's retry did nothing":      undoConfiguredLater,
		"a fallback without doubt lets it go":  fallbackThrottlesAndGoes,
		"closed before a claim, seen after it": closedBeforeAClaimThatDidNotSeeIt,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.holds(t)
		})
	}
}

// undoneTooLate has an effect whose first attempt is older than the reversal window, and whose last attempt is
// not.
var undoneTooLate = scenario{
	number: 86,
	plan: dispatchtest.ScriptKeys(map[string][]dispatchtest.Fault{
		harness.Intent("run", 1, harness.Keyed).IdempotencyKey(): {dispatchtest.DropAfter},
	}),
	play: func(t *testing.T, rig *harness.Rig) int {
		rig.Reconfigure(func(config string) string {
			return strings.Replace(config, "compensation: none",
				`compensate_with: {tool: refunds/cancel, payload: "{order: .provider_ref}"}`+"\n        reversal_window: 30m", 1)
		})
		rig.Start()
		rig.Step("run", 1, harness.Keyed)
		rig.AwaitCount("the second attempt has completed", 1, `SELECT count(*) FROM outbox.status WHERE status = 'completed'`)
		rig.Exec(`DO $$ BEGIN
			PERFORM set_config('session_replication_role', 'replica', true);  -- the time that goes by is no change of history
			UPDATE outbox.attempt SET started_at = started_at - interval '1 hour', finished_at = finished_at - interval '1 hour' WHERE outcome = 'ambiguous';
		END $$`)
		rig.Step("run", 2, harness.Declined)
		rig.AwaitCount("the run is rolled back", 1, `SELECT count(*) FROM outbox.saga WHERE state <> 'begun'`)
		return 1
	},
	wrong: func(rig *harness.Rig) bool {
		return rig.Count(`SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL`) > 0
	},
}

// undoConfiguredLater has a step that cannot be undone until the configuration has its undo and an operator
// retries the saga.
var undoConfiguredLater = scenario{number: 59, play: func(t *testing.T, rig *harness.Rig) int {
	complete := rig.Config
	rig.Reconfigure(func(config string) string {
		return regexp.MustCompile(`        compensate_with: .*\n`).ReplaceAllString(config, "")
	})
	unable := rig.Start()
	rig.Step("run", 1, harness.Order)
	rig.AwaitCount("it is completed", 1, `SELECT count(*) FROM outbox.status WHERE status = 'completed'`)
	rig.Step("run", 2, harness.Declined)
	rig.AwaitCount("its run cannot go back", 1, `SELECT count(*) FROM outbox.saga WHERE state = 'compensation_failed'`)
	unable.Terminate()
	rig.Config = complete
	rig.Program.Run(0, "sagas", "retry", "run", "--operator", "ann", "--reason", "it says how now")
	rig.Start()
	rig.AwaitCount("the run is rolled back", 1, `SELECT count(*) FROM outbox.saga WHERE state <> 'begun'`)
	return 1
}, wrong: func(rig *harness.Rig) bool {
	return rig.Count(`SELECT count(*) FROM outbox.saga WHERE state <> 'begun'`) > 0 &&
		rig.Count(`SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL AND payload ->> 'order' <> ''`) == 0
}}

// fallbackThrottlesAndGoes has a fallback that certainly did not act, so the intent must not stay with it.
var fallbackThrottlesAndGoes = scenario{
	number: 87,
	plan: dispatchtest.ScriptKeys(map[string][]dispatchtest.Fault{
		harness.Intent("run", 1, harness.Keyed).IdempotencyKey(): {dispatchtest.Throttle},
	}),
	play: func(t *testing.T, rig *harness.Rig) int {
		rig.Reconfigure(withSpare)
		rig.Exec(`INSERT INTO outbox.provider (name, state, open_until) VALUES ('keyed', 'open', now() + interval '1 hour')
			ON CONFLICT (name) DO UPDATE SET state = 'open', open_until = now() + interval '1 hour'`)
		rig.Exec(`CREATE FUNCTION public.pause() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN
			  UPDATE outbox.provider SET paused = true WHERE name = 'spare';
			  UPDATE outbox.provider SET state = 'closed', open_until = NULL WHERE name = 'keyed';
			  RETURN NEW;
			END $$`)
		rig.Exec(`CREATE TRIGGER pause AFTER INSERT ON outbox.attempt FOR EACH ROW WHEN (NEW.outcome = 'throttled') EXECUTE FUNCTION public.pause()`)
		rig.Step("run", 1, harness.Keyed)
		rig.Start()
		rig.AwaitCount("the fallback throttled", 1, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'throttled' AND served_by = 'spare'`)
		return 1
	},
	wrong: func(rig *harness.Rig) bool {
		return rig.Count(`SELECT count(*) FROM outbox.queue WHERE via IS NOT NULL AND NOT maybe_applied`) > 0
	},
}

// withSpare gives the provider "keyed" a fallback that differs only in its name.
func withSpare(config string) string {
	keyed := config[strings.Index(config, "  keyed:\n"):strings.Index(config, "  set:\n")]
	spare := strings.Replace(keyed, "  keyed:\n", "  spare:\n", 1)
	return strings.Replace(config, keyed, strings.Replace(keyed, "    adapter: http\n", "    adapter: http\n    fallback: spare\n", 1)+spare, 1)
}

// closedBeforeAClaimThatDidNotSeeIt closes a run in a transaction that begins before a claim and commits after it.
// Rows that were claimed and not sent yet must not be sent.
var closedBeforeAClaimThatDidNotSeeIt = scenario{number: 88, play: func(t *testing.T, rig *harness.Rig) int {
	rig.Step("run", 1, harness.Order)
	closing := drainertest.Begin(t, rig.DB)
	drainertest.Exec(t, closing, `INSERT INTO outbox.saga (agent_run_id) VALUES ('run')`)
	daemon := rig.Start(arm("claim_committed=hold,closed_read=fail@*"))
	daemon.WaitFor("failpoint claim_committed")
	if err := closing.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	// An answer that is read now may belong to a query before the commit, and one line may still be unread. So the
	// test waits for the third line.
	const answer = "failpoint closed_read"
	before := daemon.Logged(answer)
	drainertest.Eventually(t, "the daemon asked after the commit which runs are closed", func() bool {
		return daemon.Logged(answer) >= before+3
	})
	daemon.Signal(syscall.SIGUSR1)
	return 1
}, wrong: func(rig *harness.Rig) bool { return rig.Provider.Ledger.Audit().TotalRequests() > 0 }}

// Two daemons roll back a run of 50 MB, and smaller runs whose first undo is refused. A pass reads only one step, so
// the memory of the daemons does not grow, and other intents of the provider continue.
func TestLargeRunsAreTakenBackInLittleMemoryAndHoldNobodyUp(t *testing.T) {
	t.Parallel()
	const steps, bytes, stuckRuns, stuckSteps, others = 200, 256 << 10, 4, 10, 45
	stuck := map[string][]dispatchtest.Fault{}
	for run := range stuckRuns {
		for step := range stuckSteps {
			done := harness.Intent(name(run), step+1, harness.Order)
			undo := dispatch.Tuple{AgentRunID: done.AgentRunID, StepID: "compensate:" + done.IdempotencyKey(), ToolName: harness.Cancel, BusinessScope: done.BusinessScope}
			stuck[undo.IdempotencyKey()] = []dispatchtest.Fault{dispatchtest.Declined}
		}
	}
	rig := harness.New(t, dispatchtest.ScriptKeys(stuck))
	large := func(run string, steps int) {
		rig.Exec(`SELECT outbox.enqueue($1, 'step-' || n, $2, 'order', (SELECT jsonb_build_object('n', n, 'large', string_agg(md5(n || '/' || m), '')) FROM generate_series(1, $4::int / 32) m))
			FROM generate_series(1, $3::int) n`, run, harness.Order, steps, bytes)
	}
	large("large", steps)
	for run := range stuckRuns {
		large(name(run), stuckSteps)
	}
	first := rig.Start()
	rig.AwaitRest()
	first.Terminate()
	rig.Exec(`CREATE TABLE public.twice (run text)`)
	rig.Exec(`CREATE FUNCTION public.twice() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.twice VALUES (NEW.agent_run_id); RETURN NEW; END'`)
	rig.Exec(`CREATE TRIGGER twice AFTER UPDATE ON outbox.saga FOR EACH ROW WHEN (NEW.passes > 1) EXECUTE FUNCTION public.twice()`)

	rig.Step("large", steps+1, harness.Declined)
	for run := range stuckRuns {
		rig.Step(name(run), stuckSteps+1, harness.Declined)
	}
	daemons := []*program.Daemon{rig.Start(), rig.Start()}
	rig.AwaitCount("the large run is rolled back", 1, `SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL AND agent_run_id = 'large'`)
	rig.Enqueue(harness.Cancel, others)
	rig.AwaitRest()

	fault.Injected(t, 74, rig.Count(`SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL`))
	if undone := rig.Count(`SELECT count(*) FROM outbox.status WHERE agent_run_id = 'large' AND status = 'compensated'`); undone != steps {
		t.Errorf("%d steps are undone, want %d", undone, steps)
	}
	if failed := rig.Count(`SELECT count(*) FROM outbox.saga WHERE state = 'compensation_failed'`); failed != stuckRuns {
		t.Errorf("%d runs are left to a human, want %d", failed, stuckRuns)
	}
	if twice := rig.Count(`SELECT count(*) FROM public.twice`); twice > 0 {
		t.Errorf("a saga was taken %d times while another pass had it", twice)
	}
	const seconds = `SELECT ceil(extract(epoch FROM %s))::int FROM outbox.status s JOIN outbox.intent i ON i.id = s.intent_id WHERE s.tool_name = $1 AND `
	waited := rig.Count(fmt.Sprintf(seconds, `max(s.finished_at - s.created_at)`)+`i.compensates IS NULL`, harness.Cancel)
	all := rig.Count(fmt.Sprintf(seconds, `max(s.finished_at) - min(s.created_at)`)+`i.compensates IS NOT NULL`, harness.Cancel)
	if waited > max(20, all/2) {
		t.Errorf("another intent of the provider waited %d s of the %d s that the runs took", waited, all)
	}
	for _, daemon := range daemons {
		if peak := peakMemory(t, daemon.PID()); peak > 96<<20 { // usually 55 MB
			t.Errorf("a daemon took %d MB", peak>>20)
		}
	}
	rig.Check()
}
