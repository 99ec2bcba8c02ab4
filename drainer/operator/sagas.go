package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Saga is an agent run that goes back, or went.
type Saga struct {
	AgentRunID string     `json:"agent_run_id"`
	State      string     `json:"state"`
	Epoch      int        `json:"epoch"` // raised by every retry
	Cause      *int64     `json:"cause"` // the intent whose failure began it; null: an operator did
	BegunAt    time.Time  `json:"begun_at"`
	EndedAt    *time.Time `json:"ended_at"`
	ChangedBy  *string    `json:"changed_by"`
	Reason     *string    `json:"reason"`
}

// SagaStates lists where a saga can stand.
var SagaStates = []string{"begun", "compensated", "compensation_failed", "resolved", "cancelled"}

// SagaStory is a saga with all that its run did and undid.
type SagaStory struct {
	Saga
	WaitsFor []Wait     `json:"waits_for"` // empty unless it is under way
	Steps    []SagaStep `json:"steps"`     // in the order in which they were enqueued
	Timeline []Event    `json:"timeline"`  // the attempts of steps and undos, as they ended
}

// SagaStep is a forward intent, and its undo if there is one.
type SagaStep struct {
	Intent
	Undo *Intent `json:"undo"`
}

// Event is one attempt, and whose it was.
type Event struct {
	IntentID int64 `json:"intent_id"`
	Attempt
}

// ErrNoSaga says that an agent run has no saga.
var ErrNoSaga = errors.New("this agent run has no saga")

const sagaColumns = `agent_run_id, state, epoch, cause, begun_at, ended_at, changed_by, reason`

// Sagas lists the newest first; an empty state lists all.
func (c *Console) Sagas(ctx context.Context, state string, limit int) ([]Saga, error) {
	// CollectRows returns the error too.
	rows, _ := c.conn.Query(ctx, `SELECT `+sagaColumns+` FROM outbox.saga
		WHERE $1::text = '' OR state = $1 ORDER BY begun_at DESC LIMIT $2`, state, limit)
	sagas, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Saga])
	if err != nil {
		return nil, fmt.Errorf("list sagas: %w", err)
	}
	return sagas, nil
}

// SagaOf tells the whole story of one run.
func (c *Console) SagaOf(ctx context.Context, agentRunID string) (*SagaStory, error) {
	rows, _ := c.conn.Query(ctx, `SELECT `+sagaColumns+` FROM outbox.saga WHERE agent_run_id = $1`, agentRunID)
	saga, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Saga])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNoSaga
	}
	if err != nil {
		return nil, fmt.Errorf("show the saga: %w", err)
	}
	story := &SagaStory{Saga: saga}
	if err := c.tell(ctx, story); err != nil {
		return nil, err
	}
	return story, nil
}

func (c *Console) tell(ctx context.Context, story *SagaStory) error {
	rows, _ := c.conn.Query(ctx, `SELECT `+statusColumns+` FROM outbox.status WHERE agent_run_id = $1 ORDER BY intent_id`, story.AgentRunID)
	intents, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Intent])
	if err != nil {
		return fmt.Errorf("read the run's intents: %w", err)
	}
	undos := map[string]*Intent{}
	for i := range intents {
		undos[intents[i].StepID] = &intents[i]
		history, err := c.history(ctx, intents[i].IntentID)
		if err != nil {
			return err
		}
		for _, attempt := range history {
			story.Timeline = append(story.Timeline, Event{intents[i].IntentID, attempt})
		}
	}
	slices.SortStableFunc(story.Timeline, func(a, b Event) int { return a.FinishedAt.Compare(b.FinishedAt) })
	for _, intent := range intents {
		if !isUndo(intent) {
			story.Steps = append(story.Steps, SagaStep{intent, undos[fmt.Sprint(undoPrefix, intent.IntentID)]})
		}
	}
	story.WaitsFor = waitsFor(story.State, story.Steps)
	return nil
}
