package row_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/model/explore"
	"github.com/agentoutbox/drainer/model/real"
	"github.com/agentoutbox/drainer/model/row"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// The test takes a step of every kind in the model and in a real outbox. After each step, the tables must show the state
// of the model, and must refuse every action for which the model has no step.
func TestARealOutboxTakesTheStepsOfTheModel(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	var stored real.Outcomes
	t.Run("of a tool that is", func(t *testing.T) {
		for name, model := range map[string]row.Model{
			"key_idempotent, with a lookup":                         {Class: dispatch.KeyIdempotent, Lookup: true},
			"non_idempotent":                                        {Class: dispatch.NonIdempotent, Batched: true},
			"non_idempotent, with a lookup":                         {Class: dispatch.NonIdempotent, Lookup: true, Batched: true},
			"key_idempotent, where commits are lost":                {Class: dispatch.KeyIdempotent, RepliesArrive: true, LosesCommits: true},
			"non_idempotent, with a lookup, where commits are lost": {Class: dispatch.NonIdempotent, Lookup: true, RepliesArrive: true, LosesCommits: true},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				o := newOutbox(t, model)
				for number, walk := range explore.Tour(explore.Undivided(model.Explored(), goesOn), kindOf) {
					if o.follow(fmt.Sprintf("provider-%d", number), walk); t.Failed() {
						return
					}
				}
				stored.Add(o.Outbox)
			})
		}
	})
	known := []string{"retried", "retried_may_duplicate", "resolved", "cancelled"} // the outcomes that operators append
	for _, outcome := range dispatch.Outcomes() {
		known = append(known, string(outcome))
	}
	stored.AssertAre(t, known...)
}

// follow takes the steps of a walk, and compares after each.
func (o *outbox) follow(provider string, walk []explore.Step[row.State]) {
	o.T.Helper()
	i := o.enqueue(provider)
	at, taken := o.model.Explored().Start, 0
	defer func() {
		if o.T.Failed() {
			o.T.Logf("in the last of\n%s", explore.Numbered(walk[:taken]))
		}
	}()
	for _, step := range walk {
		taken++
		i.take(at, step)
		i.AssertTold()
		if isSeen(at, step) {
			i.assertShows(step.To)
			i.assertRefusesTheRest(step.To)
		}
		if o.T.Failed() {
			return
		}
		at = step.To
	}
}

func (i *intent) assertShows(s row.State) {
	i.T.Helper()
	if shown, want := i.see(), visibleOf(s); shown != want {
		i.T.Errorf("the outbox shows\n%+v, want\n%+v", shown, want)
	}
}

// kind distinguishes the steps that the outbox takes differently.
type kind struct {
	what    string
	outcome dispatch.Outcome // the one that is settled
	past    row.Past         // its tries are not distinguished
	stale   bool             // a claim that the intent has left is still there
	from    row.Status       // the status that was settled before
	to      row.Status
	ends    bool
}

// kindOf leaves out the steps that no outbox sees.
func kindOf(from row.State, step explore.Step[row.State]) (kind, bool) {
	switch step.What {
	case "crashes", "freezes, and is declared dead", "settles the other row":
		return kind{what: step.What}, isSeen(from, step)
	case "settles, and the reply is lost":
		step.What = "settles"
	}
	k := kind{what: step.What, outcome: outcomeOf(from, step), past: from.Queue.Past, to: step.To.Newest, ends: step.To.Settled}
	if from.Settled {
		k.from = from.Newest
	}
	for _, claim := range from.Claims {
		if claim.Owner != row.NoOwner && !claim.Settled {
			k.past = claim.Past
		}
		k.stale = k.stale || claim.Settled
	}
	k.past.Tries = 0
	return k, isSeen(from, step)
}

func outcomeOf(from row.State, step explore.Step[row.State]) (outcome dispatch.Outcome) {
	if w := workerOf(step); from.Workers[w].Phase == row.Done && strings.HasPrefix(step.What, "settles") {
		outcome = from.Workers[w].Outcome.Is()
	}
	return outcome
}

func isSeen(from row.State, step explore.Step[row.State]) bool {
	return visibleOf(from) != visibleOf(step.To) || strings.HasPrefix(step.What, "settles")
}

// goesOn reports whether a step belongs to the transaction in progress.
func goesOn(s row.State, step explore.Step[row.State]) bool {
	if s.Operator.Plan != row.None {
		return step.Who == "the operator"
	}
	return step.Who == "a reaper" && (s.Claims[0].Locked || s.Claims[1].Locked) && step.What != "locks the claim of a dead worker"
}

// outbox is a real outbox for one tool.
type outbox struct {
	*real.Outbox
	model  row.Model
	policy dispatch.Policy
	tried  map[visible]bool // where the rest was refused
}

func newOutbox(t *testing.T, model row.Model) *outbox {
	t.Helper()
	o := &outbox{Outbox: real.New(t), model: model, policy: model.Policy(), tried: map[visible]bool{}}
	o.Exec(ageSQL)
	return o
}

// intent is one intent with its own provider. It takes the steps of the model.
type intent struct {
	*outbox
	provider string
	id       int64
	era      int      // at the enqueue
	slots    [2]int64 // the claim ids that the model's slots stand for
	workers  [2]*worker
}

// worker is a process. It keeps its memory also after others have declared it dead.
type worker struct {
	id      string
	row     *drainer.Row
	started time.Time
	other   *drainer.Row // the row beside it
}

func (o *outbox) enqueue(provider string) *intent {
	o.T.Helper()
	i := &intent{outbox: o, provider: provider}
	i.id = i.commit("it")
	i.era = real.All[int](o.Outbox, `SELECT era FROM outbox.queue WHERE intent_id = $1`, i.id)[0]
	for w := range i.workers {
		i.startOver(w)
	}
	return i
}

// commit enqueues a step like an agent.
func (i *intent) commit(step string) int64 {
	i.T.Helper()
	return real.All[int64](i.Outbox, `SELECT intent_id FROM outbox.enqueue($1, $2, $3, 'scope', '{}')`, i.provider, step, i.provider+"/act")[0]
}

func (i *intent) startOver(w int) {
	i.T.Helper()
	i.workers[w] = &worker{id: i.Join(i.provider)}
}

// end returns a lane's settlement of an attempt that started at that time.
func (i *intent) end(held *drainer.Row, started time.Time, outcome dispatch.Outcome) drainer.Settlement {
	policy := i.policy
	if held.IntentID != i.id { // the row beside it has a single try
		policy = dispatch.Policy{Class: dispatch.NonIdempotent, MaxAttempts: 1}
	}
	return real.Ended(held, policy, started, outcome)
}

// judge ends the rows of one claim, and leaves all others alone.
func (i *intent) judge(claim int64, outcome dispatch.Outcome) drainer.Judge {
	return func(held *drainer.Row) (drainer.Settlement, bool) {
		var started time.Time
		if outcome == dispatch.Lost {
			started = held.ClaimedAt
		}
		return i.end(held, started, outcome), held.ClaimID == claim
	}
}

// see reads the visible state from the tables.
func (i *intent) see() (v visible) {
	i.T.Helper()
	var both pgx.Batch
	both.Queue(readSQL, i.id).QueryRow(func(r pgx.Row) error {
		return r.Scan(&v.Queue.Is, &v.Queue.Waits, &v.Queue.Tries, &v.Queue.Sent, &v.Queue.Maybe, &v.Queue.Lookup, &v.Newest, &v.Settled, &v.Incident)
	})
	both.Queue(readClaimsSQL, i.id).Query(func(rows pgx.Rows) error {
		var id int64
		var owner string
		var c visibleClaim
		_, err := pgx.ForEachRow(rows, []any{&id, &owner, &c.Settled, &c.Rest, &c.Tries, &c.Sent, &c.Maybe, &c.Lookup}, func() error {
			c.Owner = i.ownerOf(owner)
			v.Claims[i.slotOf(id)] = c.comparable()
			return nil
		})
		return err
	})
	if err := i.DB.SendBatch(i.T.Context(), &both).Close(); err != nil {
		i.T.Fatal(err)
	}
	v.Queue.Past = counted(v.Queue.Past, row.LookupTries)
	return v
}

func (i *intent) ownerOf(id string) row.Owner {
	for w, worker := range i.workers {
		if worker.id == id {
			return row.Owner(w + 1)
		}
	}
	return row.Dead
}

// slotOf returns the slot of a claim that the model knows.
func (i *intent) slotOf(claim int64) int {
	for slot, known := range i.slots {
		if known == claim {
			return slot
		}
	}
	i.T.Fatalf("claim %d should not be there", claim)
	return 0
}

// visible is the part of a state that the tables show.
type visible struct {
	Queue             row.Queued
	Claims            [2]visibleClaim
	Newest            dispatch.Status
	Settled, Incident bool
}

type visibleClaim struct {
	Owner         row.Owner
	Settled, Rest bool
	row.Past
}

func visibleOf(s row.State) visible {
	v := visible{Queue: s.Queue, Newest: s.Newest.Is(), Settled: s.Settled, Incident: s.Incident}
	for slot, c := range s.Claims {
		v.Claims[slot] = visibleClaim{c.Owner, c.Settled, c.Rest, c.Past}
	}
	return v
}

// readSQL shows one intent. Ages are those of the model: 0 is never, 1 is less than half of the key's life ago, and 2 is
// more.
const readSQL = `
	SELECT q.intent_id IS NOT NULL, coalesce(q.next_attempt_at > now() + interval '30 seconds', false), coalesce(q.tries, 0),
	       public.age(CASE WHEN doubt.is THEN least(q.first_attempt_at, i.created_at) ELSE q.first_attempt_at END),
	       coalesce(q.maybe_applied OR doubt.is, false), coalesce(q.lookup, false),
	       coalesce(newest.status, ''), coalesce(newest.next_attempt_at IS NULL, false) AND newest.attempt IS NOT NULL,
	       EXISTS (SELECT FROM outbox.incident WHERE intent_id = i.id AND kind = 'outcome_unknown' AND resolved_at IS NULL)
	FROM outbox.intent i
	LEFT JOIN outbox.queue q ON q.intent_id = i.id
	CROSS JOIN LATERAL (SELECT q.era < (SELECT doubted_before FROM outbox.history ORDER BY id DESC LIMIT 1) AS is) doubt
	LEFT JOIN LATERAL (SELECT * FROM outbox.attempt a WHERE a.intent_id = i.id ORDER BY attempt DESC LIMIT 1) newest ON true
	WHERE i.id = $1`

// readClaimsSQL shows the claims with an intent.
const readClaimsSQL = `
	SELECT c.claim_id, c.worker_id::text, ended.settled, ended.rest,
	       r.tries, public.age(r.first_attempt_at), r.maybe_applied, r.lookup
	FROM outbox.claim c
	CROSS JOIN unnest(c.intent_ids, c.attempts, c.tries, c.first_attempt_ats, c.maybe_applied, c.lookups)
	  AS r (intent_id, attempt, tries, first_attempt_at, maybe_applied, lookup)
	CROSS JOIN LATERAL (
	  SELECT bool_or(a.attempt IS NOT NULL) FILTER (WHERE o.intent_id = $1) AS settled,
	         coalesce(bool_or(a.attempt IS NULL) FILTER (WHERE o.intent_id <> $1), false) AS rest
	  FROM unnest(c.intent_ids, c.attempts) AS o (intent_id, attempt) LEFT JOIN outbox.attempt a USING (intent_id, attempt)) ended
	WHERE r.intent_id = $1`

const ageSQL = `
	CREATE FUNCTION public.age(at timestamptz) RETURNS int LANGUAGE sql AS $$
	  SELECT CASE WHEN at IS NULL THEN 0 WHEN at > now() - interval '6 hours' THEN 1 ELSE 2 END
	$$`

// comparable leaves out the past of a row that has left its claim, which the model does not distinguish.
func (c visibleClaim) comparable() visibleClaim {
	if c.Settled {
		c.Past = row.Past{}
	}
	c.Past = counted(c.Past, row.LookupTries+1)
	return c
}

// counted limits the tries of a lookup to the number to which the model counts.
func counted(p row.Past, limit int8) row.Past {
	if p.Lookup {
		p.Tries = min(p.Tries, limit)
	}
	return p
}
