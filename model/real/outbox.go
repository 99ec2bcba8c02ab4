// Package real provides an outbox to compare models with: a database of its own, the engine's store, an operator's
// console, and the settlement that a lane makes of an attempt.
package real

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// Outbox fails its test if the database fails.
type Outbox struct {
	T       *testing.T
	DB      *pgxpool.Pool
	Store   *postgres.Store
	Console *operator.Console

	told    func() []string // returns the notifications of waiters since its last call
	settled int             // number of final attempts at the last check
}

// New returns an empty outbox.
func New(t *testing.T) *Outbox {
	t.Helper()
	o := &Outbox{T: t}
	url := drainertest.Database(t)
	var err error
	if o.Store, err = postgres.Open(t.Context(), pgpool.At(url)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Store.Close)
	o.DB = drainertest.Connect(t, url)
	o.told = drainertest.Listen(t, o.DB, "outbox_settled")
	o.Exec(`INSERT INTO outbox.waiter VALUES (session_user, 'infinity')`)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	o.Console = operator.Open(conn)
	t.Cleanup(func() { o.Console.Close(context.Background()) })
	return o
}

// Exec changes tables directly, for effects of time that no command has.
func (o *Outbox) Exec(sql string, args ...any) {
	o.T.Helper()
	drainertest.Exec(o.T, o.DB, sql, args...)
}

// AssertTold fails the test if an intent was settled since the last call and waiters were not notified.
func (o *Outbox) AssertTold() {
	o.T.Helper()
	settled := All[int](o, `SELECT count(*)::int FROM outbox.attempt WHERE next_attempt_at IS NULL`)[0]
	if told := o.told(); settled > o.settled && len(told) == 0 {
		o.T.Error("an intent settles, and those who wait for results are not told")
	}
	o.settled = settled
}

// All returns the only column of a query.
func All[V any](o *Outbox, sql string, args ...any) []V {
	o.T.Helper()
	return drainertest.Column[V](o.T, o.DB, sql, args...)
}

// Join registers a new worker and returns its id.
func (o *Outbox) Join(provider string) (worker string) {
	o.T.Helper()
	worker = uuid.NewString()
	if err := o.Store.Join(o.T.Context(), worker, []string{provider}, nil); err != nil {
		o.T.Fatal(err)
	}
	return worker
}

// DeclareDead declares a worker dead whose heartbeat has stopped.
func (o *Outbox) DeclareDead(worker string) {
	o.T.Helper()
	beats, err := o.Store.Beats(o.T.Context(), time.Minute)
	if err != nil {
		o.T.Fatal(err)
	}
	silent := slices.DeleteFunc(beats, func(beat drainer.Heartbeat) bool { return beat.Worker != worker })
	if err := o.Store.DeclareDead(o.T.Context(), silent); err != nil {
		o.T.Fatal(err)
	}
}

// Commit commits a batch, in one round trip of a worker.
func (o *Outbox) Commit(worker string, batch drainer.Batch) drainer.BatchReply {
	o.T.Helper()
	reply, err := o.Store.Commit(o.T.Context(), worker, batch)
	if err != nil {
		o.T.Fatal(err)
	}
	return reply
}

// Claim commits a batch with one claim.
func (o *Outbox) Claim(worker, provider string, limit int) drainer.ClaimReply {
	o.T.Helper()
	return o.Commit(worker, drainer.Batch{Claims: []drainer.Claim{{Provider: provider, Server: provider, Limit: limit}}}).Claimed[0]
}

// Settle commits a batch with one settlement, and reports whether it was accepted. If finishes is true, the batch
// also deletes the claim.
func (o *Outbox) Settle(worker string, settlement drainer.Settlement, finishes bool) bool {
	o.T.Helper()
	batch := drainer.Batch{Settle: []drainer.Settlement{settlement}}
	if finishes {
		batch.Finish = []int64{settlement.Row.ClaimID}
	}
	return len(o.Commit(worker, batch).Refused) == 0
}

// Ended returns a lane's settlement of an attempt that started then. The zero time is for an attempt that never
// started.
func Ended(held *drainer.Row, policy dispatch.Policy, started time.Time, outcome dispatch.Outcome) drainer.Settlement {
	result := dispatch.Result{Outcome: outcome}
	decision := policy.Decide(held.History(started, time.Now()), result, 0)
	return drainer.Settlement{
		Row: held, StartedAt: started, FinishedAt: time.Now(), Result: result, Decision: decision,
		Acts:       policy.Class != dispatch.ReadOnly,
		BeginsSaga: policy.BeginsSaga && held.Undoes == nil && decision.Status == dispatch.StatusFailed,
	}
}

// OnCall is the signature of operators' changes.
var OnCall = operator.Signature{Operator: "on-call", Reason: "asked the provider"}

// Change carries out an action on an intent. The action must be allowed.
func (o *Outbox) Change(action operator.Action, intent int64) {
	o.T.Helper()
	verdicts, err := o.Console.Change(o.T.Context(), action, OnCall, []int64{intent})
	if err != nil || len(verdicts) != 1 || verdicts[0].Refused != "" {
		o.T.Fatalf("%T: %+v, %v", action, verdicts, err)
	}
}

// Allows reports whether an action is allowed, and if not, why.
func (o *Outbox) Allows(action operator.Action, intent int64) (allowed bool, refused string) {
	o.T.Helper()
	verdicts, err := o.Console.Preview(o.T.Context(), action, []int64{intent})
	if err != nil || len(verdicts) != 1 {
		o.T.Fatalf("%T: %d verdicts, %v", action, len(verdicts), err)
	}
	return verdicts[0].Refused == "", verdicts[0].Refused
}

// Outcomes collects the outcomes that outboxes stored. Parallel tests share one.
type Outcomes struct {
	mu     sync.Mutex
	stored map[string]bool
}

// Add adds the outcomes of an outbox.
func (s *Outcomes) Add(o *Outbox) {
	o.T.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored == nil {
		s.stored = map[string]bool{}
	}
	for _, outcome := range All[string](o, `SELECT DISTINCT outcome FROM outbox.attempt`) {
		s.stored[outcome] = true
	}
}

// AssertAre fails the test if an outcome was stored that the model does not know, or if no step stored one that it
// knows.
func (s *Outcomes) AssertAre(t *testing.T, known ...string) {
	t.Helper()
	slices.Sort(known)
	if stored := slices.Sorted(maps.Keys(s.stored)); !slices.Equal(stored, known) {
		t.Errorf("the steps stored the outcomes\n%v, want\n%v", stored, known)
	}
}
