package compensations_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
)

const (
	racingRuns    = 500
	racingAgents  = 6
	racingWorkers = 4
	racingSagas   = 3
)

// race has agents, workers, sagas and an operator at one outbox at once. Every
// choice of theirs comes from the seed; only who is quicker does not.
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

// start lets the agents begin their runs; the group is done with the last.
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
			if err := once(random); err != nil && r.over.Err() == nil {
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

// awaitRest returns once nothing can happen any more.
func (r *race) awaitRest() {
	r.t.Helper()
	deadline := time.After(2 * patience) // many may share this machine
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

// watchClaims keeps when each claim statement began, and when somebody first
// knew that a saga was committed.
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

// racedRun is how a run ended.
type racedRun struct {
	ID        string
	Saga      string // its state; empty without one
	Failed    bool   // by a provider, not by a human
	Incidents int    // that say it cannot go back
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

// judgeEffects compares what happened with what is on record: an effect that is
// on record happened once, and what a run that went back did is undone once, the
// newest first, after all of it had been done.
func (r *race) judgeEffects(run racedRun) {
	r.t.Helper()
	rows, err := r.db.Query(r.t.Context(), `
		SELECT s.intent_id, s.status, s.idempotency_key, coalesce(undo.idempotency_key, '')
		FROM outbox.status s JOIN outbox.intent i ON i.id = s.intent_id
		LEFT JOIN outbox.intent u ON u.compensates = i.id LEFT JOIN outbox.status undo ON undo.intent_id = u.id
		WHERE s.agent_run_id = $1 AND i.compensates IS NULL ORDER BY s.intent_id DESC`, run.ID)
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
