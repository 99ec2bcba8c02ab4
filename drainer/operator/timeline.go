package operator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// Run is an agent run, as far as a chunk of the newest intents tells.
type Run struct {
	AgentRunID string    `json:"agent_run_id"`
	Intents    int       `json:"intents"` // undos included
	Open       int       `json:"open"`    // pending or in progress
	Unknown    int       `json:"unknown"`
	Failed     int       `json:"failed"` // forward steps, and undos that failed
	Saga       *string   `json:"saga"`   // its state; nil: the run was never rolled back
	BegunAt    time.Time `json:"begun_at"`
	LastAt     time.Time `json:"last_at"` // when something of it was enqueued or ended last
}

// RunsChunk is how many intents one page of runs looks at.
const RunsChunk = 1000

// Runs groups the newest intents below an id by their run, the newest first; 0 begins with
// the newest of all. next is the id for the next page, and 0 at the end. A run of which a page
// shows a part comes again on the next page.
func (c *Console) Runs(ctx context.Context, below int64) (runs []Run, next int64, err error) {
	if below == 0 {
		below = math.MaxInt64
	}
	rows, _ := c.conn.Query(ctx, `SELECT s.agent_run_id, count(*)::int,
			(count(*) FILTER (WHERE s.status IN ('pending', 'in_progress')))::int,
			(count(*) FILTER (WHERE s.status = 'unknown'))::int,
			(count(*) FILTER (WHERE s.status IN ('failed', 'compensation_failed')))::int,
			(SELECT state FROM outbox.saga g WHERE g.agent_run_id = s.agent_run_id),
			min(s.created_at), max(coalesce(s.finished_at, s.created_at)), min(s.intent_id), sum(count(*)) OVER ()::bigint
		FROM (SELECT * FROM outbox.standing WHERE intent_id < $1::bigint ORDER BY intent_id DESC LIMIT $2::int) s
		GROUP BY s.agent_run_id ORDER BY max(s.intent_id) DESC`, below, RunsChunk)
	lowest, seen := below, int64(0)
	var run Run
	var first int64
	_, err = pgx.ForEachRow(rows, []any{
		&run.AgentRunID, &run.Intents, &run.Open, &run.Unknown, &run.Failed, &run.Saga,
		&run.BegunAt, &run.LastAt, &first, &seen,
	}, func() error {
		runs, lowest = append(runs, run), min(lowest, first)
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list runs: %w", err)
	}
	if seen == RunsChunk {
		next = lowest
	}
	return runs, next, nil
}

// Span is one attempt in the time of its run.
type Span struct {
	IntentID      int64      `json:"intent_id"`
	Attempt       int        `json:"attempt"`
	StartedAt     *time.Time `json:"started_at"` // nil: nothing was sent, as when an operator decides
	FinishedAt    time.Time  `json:"finished_at"`
	Outcome       string     `json:"outcome"`
	Status        string     `json:"status"`
	Lookup        bool       `json:"lookup"`
	NextAttemptAt *time.Time `json:"next_attempt_at"`
}

// RunStory is a run with its steps, their undos and all attempts.
type RunStory struct {
	AgentRunID string     `json:"agent_run_id"`
	Saga       *Saga      `json:"saga"` // nil: it was never rolled back
	Steps      []SagaStep `json:"steps"`
	Spans      []Span     `json:"spans"` // by intent and attempt
	WaitsFor   []Wait     `json:"waits_for"`
	Truncated  bool       `json:"truncated"` // the run has more steps or attempts than the limits
}

// Limits of a run's story. A longer run is told by its first steps.
const (
	storySteps = 500
	storySpans = 5000
)

// Story returns the first 500 intents of a run and their first 5,000 attempts.
func (c *Console) Story(ctx context.Context, agentRunID string) (*RunStory, error) {
	story := &RunStory{AgentRunID: agentRunID}
	rows, _ := c.conn.Query(ctx, `SELECT `+statusColumns+` FROM outbox.standing WHERE agent_run_id = $1::text
		ORDER BY intent_id LIMIT $2::int`, agentRunID, storySteps+1)
	intents, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Intent])
	if err != nil {
		return nil, fmt.Errorf("read the run's intents: %w", err)
	}
	if len(intents) == 0 {
		return nil, ErrNoRun
	}
	if len(intents) > storySteps {
		intents, story.Truncated = intents[:storySteps], true
	}
	rows, _ = c.conn.Query(ctx, `SELECT a.intent_id, a.attempt, a.started_at, a.finished_at, a.outcome, a.status, a.lookup, a.next_attempt_at
		FROM outbox.attempt a WHERE a.intent_id = ANY ($1::bigint[]) ORDER BY a.intent_id, a.attempt LIMIT $2::int`,
		ids(intents), storySpans+1)
	if story.Spans, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Span]); err != nil {
		return nil, fmt.Errorf("read the run's attempts: %w", err)
	}
	if len(story.Spans) > storySpans {
		story.Spans, story.Truncated = story.Spans[:storySpans], true
	}
	if story.Steps, err = c.pair(ctx, agentRunID, intents); err != nil {
		return nil, err
	}
	rows, _ = c.conn.Query(ctx, `SELECT `+sagaColumns+` FROM outbox.saga WHERE agent_run_id = $1::text`, agentRunID)
	saga, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Saga])
	switch {
	case err == nil:
		story.Saga, story.WaitsFor = &saga, waitsFor(saga.State, story.Steps)
	case !errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("read the run's saga: %w", err)
	}
	return story, nil
}

func ids(intents []Intent) []int64 {
	all := make([]int64, len(intents))
	for i, intent := range intents {
		all[i] = intent.IntentID
	}
	return all
}
