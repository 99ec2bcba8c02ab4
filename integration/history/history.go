// Package history keeps three independent accounts of the same time: [Clients] records the answers to agents'
// commits, the provider's ledger records requests and effects, and [Record] records every change of a row of the
// outbox. [Check] compares them.
package history

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// Intent is the final state of an intent.
type Intent struct {
	ID     int64
	Key    string
	Run    string
	Tool   string
	Status string
	Undoes int64 // the intent that it undoes; 0 for a forward step

	Completed time.Time // zero if it did not complete
}

// Accounts holds the three accounts.
type Accounts struct {
	Answers     map[string]Answer // of clients, by key
	Requests    map[string]int    // that the provider received, by key
	Effects     []string          // their keys, in the order in which they happened
	Intents     []Intent
	Sagas       map[string]string // state by run
	Transitions []Transition
}

// Collect reads all three accounts. The daemons may still run, but no work may remain.
func Collect(t testing.TB, clients *Clients, ledger *dispatchtest.Ledger, db *pgxpool.Pool) Accounts {
	t.Helper()
	accounts := Accounts{Answers: clients.Answers(), Requests: ledger.Audit().Requests, Sagas: map[string]string{}}
	for _, effect := range ledger.Effects() {
		accounts.Effects = append(accounts.Effects, effect.Key)
	}
	if err := accounts.readOutbox(context.Background(), db); err != nil {
		t.Fatalf("reading the outbox's account: %v", err)
	}
	return accounts
}

func (a *Accounts) readOutbox(ctx context.Context, db *pgxpool.Pool) error {
	rows, err := db.Query(ctx, `
		SELECT i.id, s.idempotency_key, i.agent_run_id, i.tool_name, s.status, coalesce(i.compensates, 0),
		       coalesce((SELECT a.finished_at FROM outbox.attempt a WHERE a.intent_id = i.id AND a.status = 'completed'
		                 AND a.outcome IN ('completed', 'resolved') ORDER BY a.attempt DESC LIMIT 1), '0001-01-01T00:00:00Z')
		FROM outbox.intent i JOIN outbox.status s ON s.intent_id = i.id ORDER BY i.id`)
	if err != nil {
		return err
	}
	if a.Intents, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Intent]); err != nil {
		return fmt.Errorf("intents: %w", err)
	}
	rows, err = db.Query(ctx, `SELECT agent_run_id, state FROM outbox.saga`)
	if err != nil {
		return err
	}
	var run, state string
	if _, err := pgx.ForEachRow(rows, []any{&run, &state}, func() error {
		a.Sagas[run] = state
		return nil
	}); err != nil {
		return fmt.Errorf("sagas: %w", err)
	}
	a.Transitions, err = transitions(ctx, db)
	return err
}

// Answer is the answer to an agent's commit.
type Answer string

// NoAnswer means that the intent may be committed or not.
const (
	Committed Answer = "committed"
	Refused   Answer = "refused" // the database refused it, or the agent rolled back
	NoAnswer  Answer = "no answer"
)

// Clients holds the answers to all agents, by idempotency key. The zero value is ready. Any number of agents may
// use it at the same time.
type Clients struct {
	mu      sync.Mutex
	answers map[string]Answer
}

// Beginner begins the agent's own transaction.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Enqueue commits one intent as an agent does, and records the answer. An agent may repeat a call.
func (c *Clients) Enqueue(ctx context.Context, db Beginner, intent dispatch.Tuple, payload json.RawMessage) Answer {
	answer := enqueue(ctx, db, intent, payload)
	c.note(intent.IdempotencyKey(), answer)
	return answer
}

// note keeps an earlier answer that may mean a commit: the refusal of a later try says nothing about it.
func (c *Clients) note(key string, answer Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers == nil {
		c.answers = map[string]Answer{}
	}
	before := c.answers[key]
	if before == Committed || (before == NoAnswer && answer == Refused) {
		return
	}
	c.answers[key] = answer
}

// Answers returns the answers recorded so far.
func (c *Clients) Answers() map[string]Answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.answers)
}

func enqueue(ctx context.Context, db Beginner, intent dispatch.Tuple, payload json.RawMessage) Answer {
	tx, err := db.Begin(ctx)
	if err != nil {
		return Refused
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	_, err = tx.Exec(ctx, `SELECT outbox.enqueue($1, $2, $3, $4, $5)`,
		intent.AgentRunID, intent.StepID, intent.ToolName, intent.BusinessScope, payload)
	if err != nil {
		return Refused // no commit was tried
	}
	return answerOf(tx.Commit(ctx))
}

// answerOf accepts an error from the server as a refusal. Any other error may have come after the commit, also the
// last message of a server that shuts down.
func answerOf(err error) Answer {
	var said *pgconn.PgError
	switch {
	case err == nil:
		return Committed
	case errors.As(err, &said) && said.SeverityUnlocalized == "ERROR", errors.Is(err, pgx.ErrTxCommitRollback):
		return Refused
	}
	return NoAnswer
}

//go:embed record.sql
var recordSQL string

// Transition is one change of one row. Fields that its table lacks are zero.
type Transition struct {
	Place    string // the table: intent, queue, claim, attempt or saga
	Change   string // INSERT, UPDATE or DELETE
	IntentID int64
	Attempt  int
	Worker   string
	Outcome  string
	Status   string
	Settled  bool   // no attempt is to follow
	Late     bool   // an attempt that reports an effect that was recorded as absent
	Closed   bool   // a forward row that was claimed to act although its run was rolled back
	Run      string // of a saga
}

// allowsAnother reports whether a further request is permitted: after an attempt that did nothing according to the
// provider, and after an operator's decision to retry.
func (t Transition) allowsAnother() bool {
	return t.Place == "attempt" && (t.Outcome == "throttled" || t.isOperators() && t.Status == "pending")
}

func (t Transition) isOperators() bool { return strings.HasPrefix(t.Worker, "operator:") }

// Record makes a database record its transitions from now on. It is only for tests.
func Record(t testing.TB, db *pgxpool.Pool) {
	t.Helper()
	if _, err := db.Exec(context.Background(), recordSQL); err != nil {
		t.Fatalf("recording transitions: %v", err)
	}
}

func transitions(ctx context.Context, db *pgxpool.Pool) ([]Transition, error) {
	rows, err := db.Query(ctx, `
		SELECT place, change, coalesce(intent_id, 0), coalesce(attempt, 0), coalesce(worker, ''), coalesce(outcome, ''),
		       coalesce(status, ''), coalesce(settled, false), coalesce(late, false), coalesce(closed, false), coalesce(run, '')
		FROM history.transition ORDER BY seq`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Transition])
}
