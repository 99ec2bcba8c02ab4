package history

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// Intent is where one stands in the end.
type Intent struct {
	ID     int64
	Key    string
	Run    string
	Tool   string
	Status string
	Undoes int64 // the intent that it undoes; 0 for a forward step
}

// Accounts are what the three tell of the same hours.
type Accounts struct {
	Answers     map[string]Answer // of clients, by key
	Requests    map[string]int    // that the provider had, by key
	Effects     []string          // their keys, in the order in which they happened
	Intents     []Intent
	Sagas       map[string]string // state by run
	Transitions []Transition
}

// Collect reads all three. The daemons may still run, as long as nothing is
// left for them to do.
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
		SELECT i.id, s.idempotency_key, i.agent_run_id, i.tool_name, s.status, coalesce(i.compensates, 0)
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
