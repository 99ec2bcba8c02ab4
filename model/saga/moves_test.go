package saga_test

import (
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/model/explore"
	"github.com/agentoutbox/drainer/model/real"
	"github.com/agentoutbox/drainer/model/saga"
)

// move takes a step of the model in the tables. i is the number of the run's step, counted from 0.
type move func(r *run, i int)

// moves has the move of each step, by the text of the step without its number.
var moves = map[string]move{
	"step is enqueued, and not committed yet": (*run).enqueues,
	"step is committed":                       (*run).commits,
	"step is about to be claimed":             inOneStatement,
	"step is in a committed claim":            forward((*run).claims),
	"step is claimed, to be asked about":      forward((*run).claims),
	"step is claimed, to be stopped":          forward((*run).claims),
	"step is stopped by a claim":              forward((*run).isStopped),
	"step is halted":                          forward((*run).isHalted),

	"step is found to be applied":                           forward(ends(dispatch.Completed)),
	"step is found not to be applied":                       forward(ends(dispatch.Absent)),
	"step cannot be found out":                              forward(endsAtLast),
	"step must not be sent":                                 forward(ends(dispatch.NotSent)),
	"step is applied":                                       forward(ends(dispatch.Completed)),
	"step is refused":                                       forward(ends(dispatch.Rejected)),
	"step is given back":                                    forward(ends(dispatch.Released)),
	"step is applied, and the reply is lost":                forward(ends(dispatch.Ambiguous)),
	"step is lost on its way":                               forward(ends(dispatch.Ambiguous)),
	"step loses its worker, which has not sent it":          forward((*run).losesWorker),
	"step loses its worker, which knows that it is applied": forward((*run).losesWorker),
	"step loses its worker, which has just sent it":         forward((*run).losesWorker),
	"step is applied late":                                  elsewhere,
	"step never arrives":                                    elsewhere,
	"step is reported as applied, late":                     forward((*run).tellsLate),

	"undo is claimed":                              undo((*run).claims),
	"undo must not be sent":                        undo(ends(dispatch.NotSent)),
	"undo is applied":                              undo(ends(dispatch.Completed)),
	"undo is refused":                              undo(ends(dispatch.Rejected)),
	"undo is applied, and the reply is lost":       undo(ends(dispatch.Ambiguous)),
	"undo loses its worker, which has not sent it": undo((*run).losesWorker),
	"undo loses its worker, which had sent it":     undo((*run).losesWorker),
	"undo is found to be applied":                  undo(ends(dispatch.Completed)),
	"undo is found not to be applied":              undo(ends(dispatch.Absent)),
	"undo cannot be found out":                     undo(endsAtLast),
	"undo cannot be asked about":                   undo(ends(dispatch.NotSent)),
	"undo is reported as applied, late":            undo((*run).tellsLate),

	"a pass reads: the newest effect is to be undone": inOneStatement,
	"a pass reads: an undo is to be noted":            inOneStatement,
	"a pass reads: a step cannot be undone":           inOneStatement,
	"a pass reads: nothing is left to undo":           inOneStatement,
	"a pass acts, and commits":                        (*run).passes,
	"a pass dies":                                     inOneStatement,
	"a pass finds news":                               inOneStatement,
	"a pass stops what waits":                         (*run).passes,

	"the operator guesses that step failed":                          forward(resolves(dispatch.StatusFailed)),
	"the operator finds that step is applied":                        forward(resolves(dispatch.StatusCompleted)),
	"the operator finds that step is not applied":                    forward(resolves(dispatch.StatusFailed)),
	"the operator finds that undo is applied":                        undo(resolves(dispatch.StatusCompleted)),
	"the operator finds that undo is not applied":                    undo(resolves(dispatch.StatusFailed)),
	"the operator takes the run back":                                commands((*run).compensate),
	"the operator takes the cancelled run back":                      commands((*run).compensate),
	"the operator cancels the run":                                   commands((*run).cancel),
	"the operator retries the saga":                                  commands((*run).retry),
	"the operator undoes by hand what was not, and retries the saga": commands((*run).retryUndone),
	"the operator resolves the saga":                                 commands((*run).resolve),

	"the database loses all commits since the steps were enqueued":     (*run).losesAll,
	"the database loses all commits since the first undo was enqueued": (*run).losesUndos,
}

// elsewhere is the move of a step that no table sees.
func elsewhere(*run, int) {}

// inOneStatement is the move of a step that the tables take together with the step that commits.
func inOneStatement(*run, int) {}

var withoutNumber = strings.NewReplacer(" 1", "", " 2", "", " 3", "")

// said returns the text of a step without its number.
func said(step explore.Step[saga.State]) string { return withoutNumber.Replace(step.String()) }

func (r *run) take(step explore.Step[saga.State]) {
	r.T.Helper()
	next, known := moves[said(step)]
	if !known {
		r.T.Fatalf("the tables have no move for: %s", step)
	}
	next(r, numberIn(r.T, step.String())-1)
}

func forward(next func(*run, *attempt)) move {
	return func(r *run, i int) {
		r.T.Helper()
		next(r, &r.steps[i].forward)
	}
}

// undo returns a move for a step's undo. It finds the intent that a pass has enqueued.
func undo(next func(*run, *attempt)) move {
	return func(r *run, i int) {
		r.T.Helper()
		undo := &r.steps[i].undo
		if undo.id == 0 {
			undo.id = real.All[int64](r.Outbox, `SELECT id FROM outbox.intent WHERE compensates = $1`, r.steps[i].forward.id)[0]
		}
		next(r, undo)
	}
}

func (r *run) enqueues(i int) {
	r.T.Helper()
	agent, err := r.DB.Begin(r.T.Context())
	if err != nil {
		r.T.Fatal(err)
	}
	r.steps[i].agent = agent
	if r.steps[i].forward.id, err = r.enqueue(agent, saga.Operation(i)); err != nil {
		r.T.Fatal(err)
	}
}

func (r *run) enqueue(agent pgx.Tx, operation string) (id int64, err error) {
	err = agent.QueryRow(r.T.Context(), `SELECT intent_id FROM outbox.enqueue($1, $2, $3, 'scope', '{}')`,
		r.provider, operation, r.provider+"/"+operation).Scan(&id)
	return id, err
}

func (r *run) commits(i int) {
	r.T.Helper()
	if err := r.steps[i].agent.Commit(r.T.Context()); err != nil {
		r.T.Fatal(err)
	}
	r.steps[i].agent = nil
}

func (r *run) claims(a *attempt) {
	r.T.Helper()
	if r.claim(a); a.row == nil {
		r.T.Fatalf("intent %d is not claimed", a.id)
	}
}

func (r *run) isStopped(a *attempt) {
	r.T.Helper()
	if found := r.claim(a); found != 1 || a.row != nil {
		r.T.Fatalf("found %d rows and claimed %+v, want it found and stopped", found, a.row)
	}
}

func (r *run) isHalted(a *attempt) {
	r.T.Helper()
	if !a.row.Closed {
		r.T.Fatal("it is claimed, and not to be stopped")
	}
	halted := r.ended(a, dispatch.Released)
	halted.Decision = r.policyOf(a.row).Halt(a.row.History(halted.StartedAt, halted.FinishedAt))
	if !r.Settle(a.worker, halted, true) {
		r.T.Fatal("that it is halted does not count")
	}
}

func ends(outcome dispatch.Outcome) func(*run, *attempt) {
	return func(r *run, a *attempt) {
		r.T.Helper()
		r.settle(a, outcome)
	}
}

func endsAtLast(r *run, a *attempt) {
	r.T.Helper()
	a.row.Tries = saga.LastTry
	r.settle(a, dispatch.Ambiguous)
}

// losesWorker declares the worker dead and recovers its row. The attempt keeps the knowledge of that worker.
func (r *run) losesWorker(a *attempt) {
	r.T.Helper()
	r.DeclareDead(a.worker)
	recovered, err := r.Store.Reap(r.T.Context(), []string{r.provider}, func(held *drainer.Row) (drainer.Settlement, bool) {
		return real.Ended(r.answerable(held), r.policyOf(held), held.ClaimedAt, dispatch.Lost), true
	})
	if err != nil || len(recovered) != 1 {
		r.T.Fatalf("%d rows were recovered, %v; want one", len(recovered), err)
	}
}

func (r *run) tellsLate(a *attempt) {
	r.T.Helper()
	if r.Settle(a.worker, r.ended(a, dispatch.Completed), true) {
		r.T.Fatal("the settlement of a lost row counts")
	}
}

func (r *run) passes(int) {
	r.T.Helper()
	if err := r.saga.Advance(r.T.Context(), r.provider); err != nil {
		r.T.Fatal(err)
	}
}

func resolves(as dispatch.Status) func(*run, *attempt) {
	return func(r *run, a *attempt) {
		r.T.Helper()
		r.Change(operator.Resolve{As: as}, a.id)
	}
}

func commands(command func(*run) error) move {
	return func(r *run, _ int) {
		r.T.Helper()
		if err := command(r); err != nil {
			r.T.Fatal(err)
		}
	}
}

func (r *run) compensate() error { return r.Console.Compensate(r.T.Context(), r.provider, real.OnCall) }

func (r *run) cancel() error {
	_, err := r.Console.CancelRun(r.T.Context(), r.provider, false, real.OnCall)
	return err
}

func (r *run) retry() error {
	return r.Console.RetrySaga(r.T.Context(), r.provider, nil, false, real.OnCall)
}

func (r *run) retryUndone() error {
	stuck := real.All[int64](r.Outbox, `SELECT intent_id FROM outbox.status WHERE agent_run_id = $1 AND status = 'compensation_failed'`, r.provider)
	return r.Console.RetrySaga(r.T.Context(), r.provider, stuck, false, real.OnCall)
}

func (r *run) resolve() error { return r.Console.ResolveSaga(r.T.Context(), r.provider, real.OnCall) }

// losesAll sets the tables back to the time when no step had been claimed, as in a copy of the database.
func (r *run) losesAll(int) {
	r.T.Helper()
	r.rollBack()
	r.losesUndos(0)
	r.Exec(`DELETE FROM outbox.saga WHERE agent_run_id = $1`, r.provider)
	r.Exec(`DELETE FROM outbox.queue WHERE agent_run_id = $1`, r.provider)
	r.Exec(`DELETE FROM outbox.attempt WHERE intent_id IN (SELECT id FROM outbox.intent WHERE agent_run_id = $1)`, r.provider)
	r.Exec(`INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, bytes, era)
		SELECT provider, created_at, id, agent_run_id, payload_bytes, 0 FROM outbox.intent WHERE agent_run_id = $1`, r.provider)
}

// losesUndos sets the tables back to the time when a pass was about to enqueue the first undo. An operator accepts that
// history.
func (r *run) losesUndos(int) {
	r.T.Helper()
	r.rollBack()
	r.Exec(`DELETE FROM outbox.claim WHERE provider = $1`, r.provider)
	r.Exec(`DELETE FROM outbox.queue WHERE intent_id IN (SELECT id FROM outbox.intent WHERE agent_run_id = $1 AND compensates IS NOT NULL)`, r.provider)
	r.Exec(`DELETE FROM outbox.attempt a USING outbox.intent i WHERE i.id = a.intent_id AND i.agent_run_id = $1
		AND (i.compensates IS NOT NULL OR a.outcome IN ('undone', 'not_undone', 'undone_by_hand', 'undo_retried'))`, r.provider)
	r.Exec(`DELETE FROM outbox.intent WHERE agent_run_id = $1 AND compensates IS NOT NULL`, r.provider)
	r.Exec(`DELETE FROM outbox.incident WHERE agent_run_id = $1`, r.provider)
	r.Exec(`UPDATE outbox.saga SET state = 'begun', ended_at = NULL, moves_at = now(), passes = 0, plan = NULL, place = 1, ready = NULL
		WHERE agent_run_id = $1`, r.provider)
	r.Exec(`UPDATE outbox.history SET table_oid = 0`)
	r.Join(r.provider)
	r.Exec(`SELECT outbox.accept_history(max(id), false, 'operator:on-call', 'restored') FROM outbox.history`)
	for i := range r.steps {
		r.steps[i].undo = attempt{}
	}
}

// run is one run with its own provider. It takes the steps of the model.
type run struct {
	*real.Outbox
	model    saga.Model
	provider string // and the run's id
	policies map[string]dispatch.Policy
	saga     *compensations.Saga
	steps    [saga.Steps]step
	ahead    bool // the tables are ahead of the model: a pass that noted an undo continues by itself
}

// step is a forward intent, and its undo.
type step struct {
	agent         pgx.Tx // it enqueues the intent, and has not committed
	forward, undo attempt
}

// attempt is the current attempt of an intent.
type attempt struct {
	id     int64
	worker string
	row    *drainer.Row
}

func newRun(o *real.Outbox, model saga.Model, provider string) *run {
	o.T.Helper()
	o.Join(provider) // the join records the database's history for the first time
	policies := model.Policies(provider)
	taken, err := compensations.New(o.DB, policies, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		o.T.Fatal(err)
	}
	return &run{Outbox: o, model: model, provider: provider, policies: policies[provider], saga: taken}
}

// claim claims only this intent, for a new worker, and returns how many rows the turn found.
func (r *run) claim(a *attempt) (found int) {
	r.T.Helper()
	r.Exec(`UPDATE outbox.queue SET next_attempt_at = CASE WHEN intent_id = $1 THEN now() ELSE 'infinity' END WHERE provider = $2`, a.id, r.provider)
	a.row, a.worker = nil, r.Join(r.provider)
	reply := r.Claim(a.worker, r.provider, 1)
	if len(reply.Rows) == 1 {
		a.row = reply.Rows[0]
		if a.row.IntentID != a.id {
			r.T.Fatalf("intent %d was claimed, want %d", a.row.IntentID, a.id)
		}
		if a.row.Lookup {
			a.row.Tries = min(a.row.Tries, saga.LookupTries)
		}
	}
	return reply.Found
}

func (r *run) policyOf(held *drainer.Row) dispatch.Policy { return r.policies[held.Tuple.Operation()] }

// settle settles an attempt. The settlement must count.
func (r *run) settle(a *attempt, outcome dispatch.Outcome) {
	r.T.Helper()
	if !r.Settle(a.worker, r.ended(a, outcome), true) {
		r.T.Fatalf("the settlement of intent %d does not count", a.id)
	}
}

func (r *run) ended(a *attempt, outcome dispatch.Outcome) drainer.Settlement {
	var started time.Time
	if outcome != dispatch.Released && outcome != dispatch.NotSent {
		started = time.Now()
	}
	return real.Ended(r.answerable(a.row), r.policyOf(a.row), started, outcome)
}

// answerable replaces a lookup that no tool answers by the act itself, as a lane does.
func (r *run) answerable(held *drainer.Row) *drainer.Row {
	policy := r.policyOf(held)
	if held.Undoes == nil || policy.Lookup != nil || policy.Class == dispatch.NonIdempotent {
		return held
	}
	acting := *held
	acting.Lookup = false
	return &acting
}

// see reads the visible state from the tables.
func (r *run) see() (v visible) {
	r.T.Helper()
	var both pgx.Batch
	both.Queue(`SELECT coalesce((SELECT state FROM outbox.saga WHERE agent_run_id = $1), '')`, r.provider).QueryRow(func(row pgx.Row) error {
		return row.Scan(&v.Saga)
	})
	both.Queue(readSQL, r.provider, saga.Queued, saga.Claimed, saga.Settled).Query(func(rows pgx.Rows) error {
		var tool, undoes string
		var shown visibleRow
		var incident bool
		_, err := pgx.ForEachRow(rows, []any{&tool, &undoes, &shown.Place, &shown.Status, &shown.Maybe, &shown.Asks, &incident}, func() error {
			if undoes != "" {
				v.Steps[numberIn(r.T, undoes)-1].Undo = shown
				return nil
			}
			step := &v.Steps[numberIn(r.T, tool)-1]
			step.Forward, step.Incident = shown, incident
			return nil
		})
		return err
	})
	if err := r.DB.SendBatch(r.T.Context(), &both).Close(); err != nil {
		r.T.Fatal(err)
	}
	return v
}

var digits = regexp.MustCompile(`\d+`)

// numberIn returns the last number in a text, which is that of a step. In a text without one, the step does not matter.
func numberIn(t *testing.T, text string) int {
	t.Helper()
	all := digits.FindAllString(text, -1)
	if len(all) == 0 {
		return 1
	}
	number, err := strconv.Atoi(all[len(all)-1])
	if err != nil {
		t.Fatal(err)
	}
	return number
}
