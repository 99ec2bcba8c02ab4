package saga_test

import (
	"log/slog"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/model/real"
	"github.com/agentoutbox/drainer/model/saga"
)

// run is one run of a provider of its own, on the way that the model takes.
type run struct {
	*real.Outbox
	model    saga.Model
	provider string // and the run's id
	policies map[string]dispatch.Policy
	saga     *compensations.Saga
	steps    [saga.Steps]step
	ahead    bool // of the model: a pass that noted an undo goes on by itself
}

// step is a forward intent, and its undo.
type step struct {
	agent         pgx.Tx // that enqueues it, and has not committed
	forward, undo attempt
}

// attempt is one of an intent.
type attempt struct {
	id     int64
	worker string
	row    *drainer.Row
}

func newRun(o *real.Outbox, model saga.Model, provider string) *run {
	o.T.Helper()
	policies := model.Policies(provider)
	taken, err := compensations.New(o.DB, policies, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		o.T.Fatal(err)
	}
	return &run{Outbox: o, model: model, provider: provider, policies: policies[provider], saga: taken}
}

// claim takes just this intent, for a worker that has no other, and returns how
// many rows the turn found.
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

// settle tells how an attempt ended, which must count.
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

// answerable makes a question that no tool answers the act itself, as a lane
// does.
func (r *run) answerable(held *drainer.Row) *drainer.Row {
	policy := r.policyOf(held)
	if held.Undoes == nil || policy.Lookup != nil || policy.Class == dispatch.NonIdempotent {
		return held
	}
	acting := *held
	acting.Lookup = false
	return &acting
}

// see reads what the tables show.
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

// numberIn is the last one in a text: that of a step. Where there is none, the
// step does not matter.
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
