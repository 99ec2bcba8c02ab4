package operator

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

const undoPrefix = "compensate:"

func isUndo(intent Intent) bool { return strings.HasPrefix(intent.StepID, undoPrefix) }

var (
	//go:embed sql/compensate.sql
	compensateSQL string
	//go:embed sql/saga_retry.sql
	sagaRetrySQL string
	//go:embed sql/saga_resolve.sql
	sagaResolveSQL string
	//go:embed sql/reopen_steps.sql
	reopenStepsSQL string
	//go:embed sql/stuck_undos.sql
	stuckUndosSQL string
)

// SagaError says why a saga is not changed, and what can be done instead.
type SagaError struct{ State, Cure string }

func (e *SagaError) Error() string {
	return "the saga is " + e.State + "; " + e.Cure
}

// ErrNotStuck says that a step cannot have been undone by hand.
var ErrNotStuck = errors.New("only a step of this run that is compensation_failed can be called undone; drainer sagas show tells which are")

// Compensate takes a run back although nothing failed. What is in flight
// ends first; then completed steps are undone.
func (c *Console) Compensate(ctx context.Context, agentRunID string, by Signature) error {
	return c.changeSaga(ctx, agentRunID, by, compensateSQL, "a run is compensated once; see drainer sagas show", nil)
}

// RetrySaga lets a saga that failed go on, in a new epoch: undos that ended
// otherwise than well are tried again, under their keys. Steps that people have
// undone themselves become compensated instead, and older ones are next.
func (c *Console) RetrySaga(ctx context.Context, agentRunID string, undone []int64, by Signature) error {
	goOn := func(ctx context.Context, tx pgx.Tx, agentRunID string, by Signature) error {
		if err := reopenSteps(ctx, tx, agentRunID, undone, by); err != nil {
			return err
		}
		return requeueUndos(ctx, tx, agentRunID, by)
	}
	return c.changeSaga(ctx, agentRunID, by, sagaRetrySQL, "only one whose compensation failed can be retried", goOn)
}

// ResolveSaga ends a saga that people have settled outside.
func (c *Console) ResolveSaga(ctx context.Context, agentRunID string, by Signature) error {
	return c.changeSaga(ctx, agentRunID, by, sagaResolveSQL, "only one that is under way or failed can be resolved", refuseWhileUndoing)
}

// refuseWhileUndoing looks after the undos that waited are gone. The statement
// is newer than the locks: an undo that a worker took in between is seen.
func refuseWhileUndoing(ctx context.Context, tx pgx.Tx, agentRunID string, _ Signature) error {
	var open bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.intent u JOIN outbox.status s ON s.intent_id = u.id
		WHERE u.agent_run_id = $1 AND u.compensates IS NOT NULL AND s.finished_at IS NULL)`, agentRunID).Scan(&open)
	switch {
	case err != nil:
		return fmt.Errorf("look for an undo that is under way: %w", err)
	case open:
		return &SagaError{State: "under way", Cure: "an undo of it is on its way, or in doubt; drainer sagas show tells which, and when it has ended"}
	}
	return nil
}

// changeSaga runs a statement that says whether it changed the saga, and what
// must follow in the same transaction.
func (c *Console) changeSaga(ctx context.Context, agentRunID string, by Signature, sql, cure string,
	then func(context.Context, pgx.Tx, string, Signature) error,
) error {
	if err := by.Validate(); err != nil {
		return err
	}
	err := pgx.BeginTxFunc(ctx, c.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, agentRunID, by.worker(), by.Reason)
		switch {
		case err != nil:
			return err
		case tag.RowsAffected() == 0:
			return whyUnchanged(ctx, tx, agentRunID, cure)
		case then == nil:
			return nil
		}
		return then(ctx, tx, agentRunID, by)
	})
	if err != nil {
		return fmt.Errorf("change the saga: %w", err)
	}
	return nil
}

func whyUnchanged(ctx context.Context, tx pgx.Tx, agentRunID, cure string) error {
	var state *string
	var known bool
	err := tx.QueryRow(ctx, `SELECT (SELECT state FROM outbox.saga WHERE agent_run_id = $1),
		EXISTS (SELECT FROM outbox.intent WHERE agent_run_id = $1)`, agentRunID).Scan(&state, &known)
	switch {
	case err != nil:
		return err
	case state != nil:
		return &SagaError{State: *state, Cure: cure}
	case known:
		return ErrNoSaga
	}
	return fmt.Errorf("no agent run has this id: %w", ErrNotFound)
}

func reopenSteps(ctx context.Context, tx pgx.Tx, agentRunID string, undone []int64, by Signature) error {
	// CollectRows returns the error too.
	rows, _ := tx.Query(ctx, reopenStepsSQL, agentRunID, by.worker(), by.Reason, undone)
	stuck, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("open its steps again: %w", err)
	}
	for _, step := range undone {
		if !slices.Contains(stuck, step) {
			return fmt.Errorf("intent %d: %w", step, ErrNotStuck)
		}
	}
	return nil
}

// requeueUndos sends undos again that ended otherwise than well. What may have
// been applied is asked about first, or repeated where its tool says that this
// is safe: the engine knows.
func requeueUndos(ctx context.Context, tx pgx.Tx, agentRunID string, by Signature) error {
	rows, _ := tx.Query(ctx, stuckUndosSQL, agentRunID)
	undos, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("find undos that ended badly: %w", err)
	}
	standings, err := standingsOf(ctx, tx, undos)
	if err != nil {
		return err
	}
	var again decisions
	for _, s := range standings {
		back := &requeue{firstAttemptAt: s.FirstAttemptAt, maybeApplied: s.MaybeApplied, lookup: s.MaybeApplied}
		if s.MaybeApplied {
			back.via = s.Via
		}
		again = append(again, decision{s, change{outcome: "retried", status: "pending", requeue: back}})
	}
	_, err = again.carryOut(ctx, tx, by)
	return err
}
