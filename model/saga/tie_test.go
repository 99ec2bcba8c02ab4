package saga_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/model/explore"
	"github.com/agentoutbox/drainer/model/real"
	"github.com/agentoutbox/drainer/model/saga"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// The test takes a step of every kind in the model and in real tables. After each step, the tables must show the state
// of the model, and must refuse every action for which the model has no step.
func TestRealRunsTakeTheStepsOfTheModel(t *testing.T) {
	t.Parallel()
	var stored real.Outcomes
	t.Run("of a tool that is", func(t *testing.T) {
		for name, model := range map[string]saga.Model{
			"key_idempotent":                         keyed,
			"non_idempotent, with a lookup":          asked,
			"non_idempotent, not reversible":         irreversible,
			"key_idempotent, where commits are lost": losing(saga.Model{Class: dispatch.KeyIdempotent, Unattended: true}),
			"non_idempotent, where commits are lost": losing(unattended),
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				o, tried := real.New(t), map[visible]bool{}
				for number, walk := range explore.Tour(explore.Undivided(model.Explored(), isInTransaction), kindOf(model)) {
					if newRun(o, model, fmt.Sprintf("shop-%d", number)).follow(walk, tried); t.Failed() {
						return
					}
				}
				stored.Add(o)
			})
		}
	})
	stored.AssertAre(t, "completed", "rejected", "absent", "ambiguous", "not_sent", "released", "lost", "cancelled", "resolved",
		"retried", "undone", "not_undone", "undone_by_hand", "undo_retried")
}

// follow takes the steps of a walk, and compares after each that commits.
func (r *run) follow(walk []explore.Step[saga.State], tried map[visible]bool) {
	r.T.Helper()
	at, taken := saga.State{}, 0
	defer func() {
		r.rollBack()
		if r.T.Failed() {
			r.T.Logf("in the last of\n%s", explore.Numbered(walk[:taken]))
		}
	}()
	for _, step := range walk {
		if r.ahead && !isPass(step) {
			return
		}
		taken++
		if !r.ahead {
			r.take(step)
			r.AssertTold()
		}
		r.ahead = r.goesOn(at, step)
		at = step.To
		if !r.ahead && !isUnderWay(at) {
			r.assertShows(at, tried)
		}
		if r.T.Failed() {
			return
		}
	}
}

// assertShows compares the tables with the state. Once for all states that look the same in the tables, it also tries
// the actions for which the model has no step.
func (r *run) assertShows(s saga.State, tried map[visible]bool) {
	r.T.Helper()
	want := visibleOf(s)
	if shown := r.see(); shown != want {
		r.T.Fatalf("the tables show\n%+v, want\n%+v", shown, want)
	}
	if tried[want] {
		return
	}
	tried[want] = true
	r.assertRefusesTheRest(s)
	if shown := r.see(); shown != want {
		r.T.Errorf("what is refused leaves the tables at\n%+v, want\n%+v", shown, want)
	}
}

// isUnderWay reports whether the state is within a transaction, which the tables take as one step.
func isUnderWay(s saga.State) bool {
	return s.Passes[0].Acts || slices.ContainsFunc(s.Steps[:], func(step saga.Step) bool { return step.Place == saga.Claiming })
}

// goesOn reports whether a real pass continues by itself after this step. It does once it has noted an undo.
func (r *run) goesOn(from saga.State, step explore.Step[saga.State]) bool {
	if !isPass(step) {
		return false
	}
	notes := strings.HasSuffix(step.What, "commits") && from.Passes[0].Plan == compensations.Mark
	return (notes || r.ahead && step.To.Passes[0].Acts) && slices.ContainsFunc(r.model.Explored().Steps(step.To), isPass)
}

func isPass(step explore.Step[saga.State]) bool { return strings.HasSuffix(step.Who, "pass") }

// rollBack rolls back the transactions that the walk left open.
func (r *run) rollBack() {
	for i := range r.steps {
		if agent := r.steps[i].agent; agent != nil {
			agent.Rollback(r.T.Context())
			r.steps[i] = step{}
		}
	}
}

// kind distinguishes the steps that the tables take differently.
type kind struct {
	said          string
	from, to      string // the saga
	before, after visibleStep
}

// kindOf leaves out the steps that no table sees. If the model loses commits, kindOf also leaves out the steps before
// the loss, which the other tours take.
func kindOf(model saga.Model) explore.Kind[saga.State, kind] {
	return func(from saga.State, step explore.Step[saga.State]) (kind, bool) {
		if model.LosesCommits && !step.To.LostCommits {
			return kind{}, false
		}
		return seenKindOf(from, step)
	}
}

func seenKindOf(from saga.State, step explore.Step[saga.State]) (kind, bool) {
	before, after := visibleOf(from), visibleOf(step.To)
	if before == after {
		return kind{}, false
	}
	k := kind{said: said(step), from: before.Saga, to: after.Saga}
	for i := range before.Steps {
		if before.Steps[i] != after.Steps[i] {
			k.before, k.after = before.Steps[i], after.Steps[i]
		}
	}
	return k, true
}

// isInTransaction reports whether a step belongs to the transaction in progress.
func isInTransaction(s saga.State, step explore.Step[saga.State]) bool {
	return s.Passes[0].Acts && isPass(step) || step.What == "is in a committed claim"
}

// visible is the part of a state that the tables show.
type visible struct {
	Saga  string
	Steps [saga.Steps]visibleStep
}

type visibleStep struct {
	Forward, Undo visibleRow
	Incident      bool
}

type visibleRow struct {
	Place       saga.Place
	Status      dispatch.Status
	Maybe, Asks bool // of a row that waits
}

func visibleOf(s saga.State) (v visible) {
	v.Saga = s.Saga.String()
	for i, step := range s.Steps {
		v.Steps[i] = visibleStep{rowOf(step.Row), rowOf(step.Undo), step.Incident}
	}
	return v
}

func rowOf(r saga.Row) visibleRow {
	switch r.Place {
	case saga.Absent, saga.Committing:
		return visibleRow{}
	case saga.Queued:
		return visibleRow{r.Place, r.Status.Is(), r.Maybe, r.Asks}
	}
	return visibleRow{Place: r.Place, Status: r.Status.Is()}
}

// readSQL shows the intents of a run. Places are those of the model.
const readSQL = `
	SELECT i.tool_name, coalesce(forward.tool_name, ''),
	       CASE WHEN q.intent_id IS NOT NULL THEN $2::int WHEN newest.attempt IS NOT NULL AND newest.next_attempt_at IS NULL THEN $4::int ELSE $3::int END,
	       coalesce(newest.status, 'pending'),
	       coalesce(q.maybe_applied OR q.era < (SELECT doubted_before FROM outbox.history ORDER BY id DESC LIMIT 1), false), coalesce(q.lookup, false),
	       EXISTS (SELECT FROM outbox.incident n WHERE n.intent_id = i.id AND n.kind = 'compensation_failed' AND n.resolved_at IS NULL)
	FROM outbox.intent i
	LEFT JOIN outbox.intent forward ON forward.id = i.compensates
	LEFT JOIN outbox.queue q ON q.intent_id = i.id
	LEFT JOIN LATERAL (SELECT * FROM outbox.attempt a WHERE a.intent_id = i.id ORDER BY attempt DESC LIMIT 1) newest ON true
	WHERE i.agent_run_id = $1`
