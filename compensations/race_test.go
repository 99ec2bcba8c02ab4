package compensations_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
)

const (
	racingRuns    = 500
	racingAgents  = 6
	racingWorkers = 4
	racingSagas   = 3
)

// race runs agents, workers, sagas and an operator on one outbox at the same time. The seed determines all their
// choices, but not which of them is quicker.
type race struct {
	*world
	seed    uint64
	effects *effects
	actors  uint64
	running sync.WaitGroup
	over    context.Context
}

// TestRunsThatRaceGoBackWhollyOrNotAtAll takes its seed from RACE_SEED, if set.
func TestRunsThatRaceGoBackWhollyOrNotAtAll(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	seed := rand.Uint64()
	if given, err := strconv.ParseUint(os.Getenv("RACE_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("RACE_SEED=%d", seed)
	over, stop := context.WithCancel(t.Context())
	r := &race{world: newWorld(t), seed: seed, effects: newEffects(), over: over}
	r.exec(watchClaims)

	agents := r.start()
	for range racingWorkers {
		r.act(r.work)
	}
	for range racingSagas {
		r.act(r.takeBack)
	}
	r.act(r.operate)
	agents.Wait()
	r.awaitRest()
	stop()
	r.running.Wait()
	r.judge()
}

// start starts the agents. The group is done when they have enqueued the last run.
func (r *race) start() *sync.WaitGroup {
	numbers := make(chan int, racingRuns)
	for number := range racingRuns {
		numbers <- number
	}
	close(numbers)
	var agents sync.WaitGroup
	for range racingAgents {
		random := r.random()
		agents.Go(func() {
			for number := range numbers {
				r.enqueueRun(random, number)
			}
		})
	}
	return &agents
}

// act repeats what an actor does until the race is over.
func (r *race) act(once func(*rand.Rand) error) {
	random := r.random()
	r.running.Go(func() {
		rest := time.NewTicker(time.Millisecond)
		defer rest.Stop()
		for r.over.Err() == nil && !r.t.Failed() {
			err := once(random)
			isLate := errors.As(err, new(*pgconn.ConnectError)) && pgconn.Timeout(err) // a connect may be late on a busy machine; the actor tries again
			if err != nil && r.over.Err() == nil && !isLate {
				r.t.Error(err)
			}
			<-rest.C
		}
	})
}

func (r *race) random() *rand.Rand {
	r.actors++
	return rand.New(rand.NewPCG(r.seed, r.actors))
}

// awaitRest returns once no intent is unfinished or unknown, and no saga is begun.
func (r *race) awaitRest() {
	r.t.Helper()
	deadline := time.After(3 * patience) // many tests share the machine
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for !r.t.Failed() {
		drainertest.AssertInvariant(r.t, r.db)
		restless := stored[int](r.world, `
			SELECT count(*) FROM (
			  SELECT FROM outbox.status WHERE finished_at IS NULL
			  UNION ALL SELECT FROM outbox.status s JOIN outbox.intent i ON i.id = s.intent_id WHERE s.status = 'unknown' AND i.compensates IS NULL
			  UNION ALL SELECT FROM outbox.saga WHERE state = 'begun') restless`)
		if restless == 0 {
			return
		}
		select {
		case <-look.C:
		case <-deadline:
			r.t.Fatalf("%d things never come to rest", restless)
		}
	}
}

// watchClaims records when each claim statement began. Its table known is for the time at which a process first knew
// that a saga was committed.
const watchClaims = `
	CREATE TABLE public.claimed (intent_id bigint, asks boolean, at timestamptz);
	CREATE TABLE public.known (agent_run_id text COLLATE "C" PRIMARY KEY, at timestamptz);
	CREATE FUNCTION public.watch() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
	  INSERT INTO public.claimed SELECT unnest(NEW.intent_ids), unnest(NEW.lookups), statement_timestamp();
	  RETURN NULL;
	END $$;
	CREATE TRIGGER watch AFTER INSERT ON outbox.claim FOR EACH ROW EXECUTE FUNCTION public.watch()`

func (r *race) know(run string) error {
	_, err := r.db.Exec(r.t.Context(), `
		INSERT INTO public.known SELECT agent_run_id, clock_timestamp() FROM outbox.saga WHERE agent_run_id = $1 ON CONFLICT DO NOTHING`, run)
	return err
}

// racedRun describes how a run ended.
type racedRun struct {
	ID        string
	Saga      string // its state; empty without one
	Failed    bool   // by a provider, not by a human
	Incidents int    // those that say that it cannot be rolled back
}

func (r *race) judge() {
	r.t.Helper()
	if early := stored[int](r.world, `
		SELECT count(*) FROM public.claimed c JOIN outbox.intent i ON i.id = c.intent_id JOIN public.known k USING (agent_run_id)
		WHERE i.compensates IS NULL AND NOT c.asks AND c.at > k.at`); early != 0 {
		r.t.Errorf("%d forward steps were claimed after the saga's commit was known", early)
	}
	if late := stored[int](r.world, `SELECT count(*) FROM outbox.incident WHERE detail = 'late_effect'`); late != 0 {
		r.t.Errorf("%d effects are said to be late, but each was on record", late)
	}
	rows, err := r.db.Query(r.t.Context(), `
		SELECT run.id, coalesce(s.state, ''),
		       EXISTS (SELECT FROM outbox.attempt a JOIN outbox.intent i ON i.id = a.intent_id
		               WHERE i.agent_run_id = run.id AND i.compensates IS NULL AND a.status = 'failed' AND a.outcome <> 'resolved'),
		       (SELECT count(*) FROM outbox.incident n WHERE n.agent_run_id = run.id AND n.kind <> 'outcome_unknown')
		FROM (SELECT DISTINCT agent_run_id AS id FROM outbox.intent) run LEFT JOIN outbox.saga s ON s.agent_run_id = run.id`)
	if err != nil {
		r.t.Fatal(err)
	}
	runs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[racedRun])
	if err != nil {
		r.t.Fatal(err)
	}
	sagas := map[string]int{}
	for _, run := range runs {
		sagas[run.Saga]++
		run.judge(r.t)
		r.judgeEffects(run)
	}
	met := map[string]int{}
	for _, outcome := range []string{"cancelled", "lost", "resolved", "undone", "not_undone"} {
		met[outcome] = stored[int](r.world, `SELECT count(*) FROM outbox.attempt WHERE outcome = $1`, outcome)
	}
	r.t.Logf("sagas %v, attempts %v", sagas, met)
	for what, count := range met {
		if count == 0 {
			r.t.Errorf("no attempt was %s, so nothing is shown of it", what)
		}
	}
	if sagas["compensated"] < racingRuns/20 || sagas["compensation_failed"] == 0 || sagas[""] == 0 {
		r.t.Errorf("the sagas are %v, so too little is shown", sagas)
	}
}

func (run racedRun) judge(t *testing.T) {
	t.Helper()
	if run.Failed != (run.Saga != "") {
		t.Errorf("%s failed: %t; its saga is %q", run.ID, run.Failed, run.Saga)
	}
	if want := map[string]int{"compensation_failed": 1}[run.Saga]; run.Incidents != want {
		t.Errorf("%s has %d incidents, want %d, as its saga is %q", run.ID, run.Incidents, want, run.Saga)
	}
}

// racedStep is a forward step and its undo.
type racedStep struct {
	Intent    int64
	Status    string
	Key, Undo string // the keys; Undo is empty without an undo
}

// judgeEffects compares the effects with the record. An effect on record happened once. Each effect of a run that was
// rolled back is undone once, the newest first, after all of them had happened.
func (r *race) judgeEffects(run racedRun) {
	r.t.Helper()
	rows, err := r.db.Query(r.t.Context(), `
		SELECT s.intent_id, s.status, s.idempotency_key, coalesce(undo.idempotency_key, '')
		FROM outbox.intent i LEFT JOIN outbox.intent u ON u.compensates = i.id
		-- LIMIT: each run would read all of the view otherwise
		CROSS JOIN LATERAL (SELECT * FROM outbox.status WHERE intent_id = i.id LIMIT 1) s
		LEFT JOIN LATERAL (SELECT * FROM outbox.status WHERE intent_id = u.id LIMIT 1) undo ON true
		WHERE i.agent_run_id = $1 AND i.compensates IS NULL
		ORDER BY (SELECT max(finished_at) FROM outbox.attempt a WHERE a.intent_id = i.id AND a.status = 'completed' AND a.outcome IN ('completed', 'resolved')) DESC NULLS LAST, s.intent_id DESC`, run.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	steps, err := pgx.CollectRows(rows, pgx.RowToStructByPos[racedStep])
	if err != nil {
		r.t.Fatal(err)
	}
	var newest int // effect of the run so far, and then of its undos
	for _, step := range steps {
		done := r.effects.of(step.Key)
		if happened := map[string]int{"completed": 1, "compensated": 1, "compensation_failed": 1}[step.Status]; len(done) != happened {
			r.t.Errorf("%s: step %d is %s and had %d effects", run.ID, step.Intent, step.Status, len(done))
		}
		newest = max(newest, last(done))
	}
	for _, step := range steps {
		undone := r.effects.of(step.Undo)
		if run.Saga == "compensated" && len(undone) != len(r.effects.of(step.Key)) || len(undone) > 1 {
			r.t.Errorf("%s is %q: step %d is %s and was undone %d times", run.ID, run.Saga, step.Intent, step.Status, len(undone))
		}
		if len(undone) > 0 && undone[0] < newest {
			r.t.Errorf("%s: step %d was undone before its turn", run.ID, step.Intent)
		}
		newest = max(newest, last(undone))
	}
}

func last(moments []int) int {
	if len(moments) == 0 {
		return 0
	}
	return moments[len(moments)-1]
}

// effects has the moments of the providers' effects by key, by one clock.
type effects struct {
	mu    sync.Mutex
	now   int
	byKey map[string][]int
}

func newEffects() *effects { return &effects{byKey: map[string][]int{}} }

func (e *effects) of(key string) []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.byKey[key]
}

// have makes the effect, unless the provider keeps keys and knows this one.
func (e *effects) have(key string, class dispatch.Class) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if class == dispatch.KeyIdempotent && len(e.byKey[key]) > 0 {
		return
	}
	e.now++
	e.byKey[key] = append(e.byKey[key], e.now)
}

// enqueueRun acts as an agent. It commits step after step, some in one transaction, some with a snapshot that was taken
// long before, until the run is complete or takes no further step.
func (r *race) enqueueRun(random *rand.Rand, number int) {
	forward := []string{"shop/hold", "shop/reserve", "shop/transfer", "shop/wire"}
	run := fmt.Sprintf("run-%d", number)
	for step, steps := 0, 2+random.IntN(5); step < steps; {
		together := 1 + random.IntN(steps-step)
		isolation := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead}[random.IntN(2)]
		err := pgx.BeginTxFunc(r.t.Context(), r.db, pgx.TxOptions{IsoLevel: isolation}, func(tx pgx.Tx) error {
			for n := range together {
				r.dawdle(random, tx)
				if _, err := tx.Exec(r.t.Context(), `SELECT outbox.enqueue($1, $2, $3, 'scope', '{}')`,
					run, fmt.Sprintf("step-%d", step+n), forward[random.IntN(len(forward))]); err != nil {
					return err
				}
			}
			r.dawdle(random, tx)
			return nil
		})
		if sqlState(err) == "OB002" {
			return
		}
		if err != nil {
			r.t.Error(err)
			return
		}
		step += together
	}
}

// dawdle sometimes waits, so that other actors come first.
func (r *race) dawdle(random *rand.Rand, tx pgx.Tx) {
	for range random.IntN(6) * random.IntN(3) {
		_, _ = tx.Exec(r.t.Context(), `SELECT`) // the next statement reports an error
	}
}

// work runs a worker until it dies or the race is over.
func (r *race) work(random *rand.Rand) error {
	store := r.store
	worker := &racer{race: r, Store: store, id: uuid.NewString(), random: random}
	if err := store.Join(r.over, worker.id, []string{"shop"}, nil); err != nil {
		return err
	}
	for r.over.Err() == nil && !r.t.Failed() {
		if _, err := store.Reap(r.over, []string{"shop"}, lost); err != nil {
			return err
		}
		rows, err := worker.claim()
		if err != nil {
			return err
		}
		if random.IntN(25) == 0 {
			return worker.die(worker.attempt(rows[:random.IntN(len(rows)+1)]))
		}
		settlements := worker.attempt(rows)
		if err := worker.settle(settlements); err != nil {
			return err
		}
	}
	return nil
}

// racer is a worker. It does what a lane does with its rows.
type racer struct {
	*race
	*postgres.Store
	id     string
	random *rand.Rand
}

func (w *racer) claim() ([]*drainer.Row, error) {
	reply, err := w.Commit(w.over, w.id, drainer.Batch{Claims: []drainer.Claim{{Provider: "shop", Server: "shop", Limit: 1 + w.random.IntN(8)}}})
	if err != nil || len(reply.Claimed) == 0 {
		return nil, err
	}
	return reply.Claimed[0].Rows, nil
}

// attempt returns the settlements of the rows, in a random order.
func (w *racer) attempt(rows []*drainer.Row) (settlements []drainer.Settlement) {
	for _, row := range rows {
		policy := tools[row.Tuple.Operation()]
		if row.Closed {
			settlements = append(settlements, halted(row, policy))
			continue
		}
		settlements = append(settlements, ended(row, w.send(row, policy)))
	}
	w.random.Shuffle(len(settlements), func(i, j int) { settlements[i], settlements[j] = settlements[j], settlements[i] })
	return settlements
}

// halted returns the settlement that a lane makes for a row of a run that is rolled back.
func halted(row *drainer.Row, policy dispatch.Policy) drainer.Settlement {
	history := dispatch.History{Tries: row.Tries, MaybeApplied: row.MaybeApplied}
	return drainer.Settlement{
		Row: row, FinishedAt: time.Now(), Decision: policy.Halt(history),
		Result: dispatch.Result{Outcome: dispatch.Released, ErrorClass: "run_compensating"},
	}
}

func lost(row *drainer.Row) (drainer.Settlement, bool) {
	return ended(row, dispatch.Result{Outcome: dispatch.Lost, ErrorClass: "worker_lost"}), true
}

// send returns the result of a provider that fails in all the ways that matter here.
func (w *racer) send(row *drainer.Row, policy dispatch.Policy) dispatch.Result {
	key, chance := row.Tuple.IdempotencyKey(), w.random.IntN(100)
	happened := len(w.effects.of(key)) > 0
	switch {
	case chance < 5:
		return dispatch.Result{Outcome: dispatch.Throttled}
	case chance < 10:
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "before"}
	case row.Lookup && happened:
		return dispatch.Result{Outcome: dispatch.Completed}
	case row.Lookup:
		return dispatch.Result{Outcome: dispatch.Absent}
	case chance < 15:
		return dispatch.Result{Outcome: dispatch.NotSent}
	case !happened && w.refuses(row):
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "rejected"}
	}
	w.effects.have(key, policy.Class)
	if chance > 92 {
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "after"}
	}
	return dispatch.Result{Outcome: dispatch.Completed}
}

// refuses returns true for one step in eight, and for one undo in fifty.
func (w *racer) refuses(row *drainer.Row) bool {
	if row.Undoes != nil {
		return w.random.IntN(50) == 0
	}
	return w.random.IntN(8) == 0
}

// settle commits all in one turn, or one by one.
func (w *racer) settle(settlements []drainer.Settlement) error {
	if len(settlements) == 0 {
		return nil
	}
	size := len(settlements)
	if w.random.IntN(2) == 0 {
		size = 1
	}
	for part := range slices.Chunk(settlements, size) {
		if _, err := w.Commit(w.over, w.id, drainer.Batch{Settle: part}); err != nil {
			return err
		}
		for _, settlement := range part {
			if settlement.BeginsSaga {
				if err := w.know(settlement.Row.Tuple.AgentRunID); err != nil {
					return err
				}
			}
		}
	}
	_, err := w.Commit(w.over, w.id, drainer.Batch{Finish: []int64{settlements[0].Row.ClaimID}})
	return err
}

// die declares the worker dead, and loses some outcomes for good. It settles the others late: another worker may have
// recovered the rows before.
func (w *racer) die(settlements []drainer.Settlement) error {
	if _, err := w.db.Exec(w.over, `DELETE FROM outbox.worker WHERE worker_id = $1`, w.id); err != nil {
		return err
	}
	if w.random.IntN(2) == 0 {
		if _, err := w.Reap(w.over, []string{"shop"}, lost); err != nil {
			return err
		}
	}
	late := settlements[:w.random.IntN(len(settlements)+1)]
	if len(late) == 0 {
		return nil
	}
	_, err := w.Commit(w.over, w.id, drainer.Batch{Settle: late})
	return err
}

// takeBack advances the sagas that have begun, as one of several processes.
func (r *race) takeBack(random *rand.Rand) error {
	runs := all[string](r.world, `SELECT agent_run_id FROM outbox.saga WHERE state = 'begun'`)
	random.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
	for _, run := range runs {
		if err := r.saga.Advance(r.over, run); err != nil {
			return err
		}
	}
	return nil
}

// operate resolves unknown outcomes with the truth, which no process can find out.
func (r *race) operate(*rand.Rand) error {
	rows, err := r.db.Query(r.over, `
		SELECT s.intent_id, s.idempotency_key FROM outbox.status s JOIN outbox.intent i ON i.id = s.intent_id
		WHERE s.status = 'unknown' AND s.finished_at IS NOT NULL AND i.compensates IS NULL`)
	if err != nil {
		return err
	}
	type doubt struct {
		Intent int64
		Key    string
	}
	doubts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[doubt])
	if err != nil || len(doubts) == 0 {
		return err
	}
	return withConsole(r.over, r.db, func(console *operator.Console) error {
		for _, d := range doubts {
			as := dispatch.StatusFailed
			if len(r.effects.of(d.Key)) > 0 {
				as = dispatch.StatusCompleted
			}
			signature := operator.Signature{Operator: "ann", Reason: "asked the shop"}
			if _, err := console.Change(r.over, operator.Resolve{As: as}, signature, []int64{d.Intent}); err != nil {
				return err
			}
		}
		return nil
	})
}

func withConsole(ctx context.Context, db *pgxpool.Pool, do func(*operator.Console) error) error {
	conn, err := pgx.ConnectConfig(ctx, db.Config().ConnConfig)
	if err != nil {
		return err
	}
	console := operator.Open(conn)
	return errors.Join(do(console), console.Close(context.WithoutCancel(ctx)))
}

func TestAnotherTenantsIntentClosesNoRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.completed("shop/order", 1)
	stranger := drainertest.Connect(t, drainertest.Login(t, w.url, "outbox_agent"))
	w.exec(`INSERT INTO outbox.tenant (name, role) VALUES ('stranger', $1)`, drainertest.Value[string](t, stranger, `SELECT session_user::text`))
	w.shop.answer("rejected", dispatch.Rejected)
	for run, want := range map[string]string{"run-1": "OB005", "strange": ""} {
		if _, err := stranger.Exec(t.Context(), `SELECT outbox.enqueue($1, 'rejected', 'shop/order', 'order-1', '{}')`, run); sqlState(err) != want {
			t.Errorf("%s: got %v, want SQLSTATE %q", run, err, want)
		}
	}
	w.drain()
	w.advance()
	if closed := all[string](w, `SELECT agent_run_id FROM outbox.saga`); !slices.Equal(closed, []string{"strange"}) {
		t.Errorf("closed are %v, want the stranger's own run", closed)
	}
	if undone := stored[int](w, `SELECT count(*) FROM outbox.intent WHERE compensates IS NOT NULL`); undone != 0 {
		t.Errorf("%d steps are undone", undone)
	}
}
