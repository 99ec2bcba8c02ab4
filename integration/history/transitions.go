package history

import (
	"context"
	_ "embed"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed record.sql
var recordSQL string

// Transition is one change of one row. Fields that its table does not have are
// zero.
type Transition struct {
	Place    string // the table: intent, queue, claim, attempt or saga
	Change   string // INSERT, UPDATE or DELETE
	IntentID int64
	Attempt  int
	Worker   string
	Outcome  string
	Status   string
	Settled  bool   // an attempt that none is to follow
	Late     bool   // an attempt that tells of an effect which was on record as none
	Closed   bool   // a forward row that was claimed to be sent, though its run went back
	Run      string // a saga's
}

// allowsAnother holds of an attempt that did nothing by the provider's own
// word, and of an operator's decision to try again.
func (t Transition) allowsAnother() bool {
	return t.Place == "attempt" && (t.Outcome == "throttled" || t.isOperators() && t.Status == "pending")
}

func (t Transition) isOperators() bool { return strings.HasPrefix(t.Worker, "operator:") }

// Record makes a database write down its transitions from now on. Only tests do.
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
