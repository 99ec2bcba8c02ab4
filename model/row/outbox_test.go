package row_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/model/real"
	"github.com/agentoutbox/drainer/model/row"
)

// outbox is a real one, for one tool.
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

// intent is one intent of a provider of its own, on the way that the model
// takes.
type intent struct {
	*outbox
	provider string
	id       int64
	slots    [2]int64 // the claim ids that the model's slots stand for
	workers  [2]*worker
}

// worker is a process: what it remembers outlives what others think of it.
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
	for w := range i.workers {
		i.startOver(w)
	}
	return i
}

// commit is what an agent does.
func (i *intent) commit(step string) int64 {
	i.T.Helper()
	return real.All[int64](i.Outbox, `SELECT intent_id FROM outbox.enqueue($1, $2, $3, 'scope', '{}')`, i.provider, step, i.provider+"/act")[0]
}

func (i *intent) startOver(w int) {
	i.T.Helper()
	i.workers[w] = &worker{id: i.Join(i.provider)}
}

// end is what a lane makes of an attempt that was started then.
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

// see reads what the tables show.
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

// slotOf is that of a claim that the model knows.
func (i *intent) slotOf(claim int64) int {
	for slot, known := range i.slots {
		if known == claim {
			return slot
		}
	}
	i.T.Fatalf("claim %d should not be there", claim)
	return 0
}
