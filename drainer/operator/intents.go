package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/jackc/pgx/v5"
)

// Intent is a row of the view outbox.status.
type Intent struct {
	IntentID       int64           `json:"intent_id"`
	AgentRunID     string          `json:"agent_run_id"`
	StepID         string          `json:"step_id"`
	ToolName       string          `json:"tool_name"`
	BusinessScope  string          `json:"business_scope"`
	Provider       string          `json:"provider"`
	IdempotencyKey string          `json:"idempotency_key"`
	Status         string          `json:"status"`
	Attempts       int             `json:"attempts"`
	NextAttemptAt  *time.Time      `json:"next_attempt_at"`
	LastOutcome    *string         `json:"last_outcome"`
	LastError      *string         `json:"last_error"`
	HTTPStatus     *int            `json:"http_status"`
	Response       json.RawMessage `json:"response"`
	ProviderRef    *string         `json:"provider_ref"`
	CreatedAt      time.Time       `json:"created_at"`
	FinishedAt     *time.Time      `json:"finished_at"`
}

// Statuses lists where an intent can stand.
var Statuses = []string{
	"pending", "in_progress", "completed", "failed", "unknown", "cancelled", "compensated", "compensation_failed",
}

// Attempt is one entry of an intent's history: a dispatch, or what an operator
// did.
type Attempt struct {
	Attempt         int             `json:"attempt"`
	Worker          string          `json:"worker"`
	StartedAt       *time.Time      `json:"started_at"`
	FinishedAt      time.Time       `json:"finished_at"`
	Outcome         string          `json:"outcome"`
	Status          string          `json:"status"`
	NextAttemptAt   *time.Time      `json:"next_attempt_at"`
	HTTPStatus      *int            `json:"http_status"`
	Error           *string         `json:"error"`
	ProviderRef     *string         `json:"provider_ref"`
	Response        json.RawMessage `json:"response"`
	ResponseHeaders json.RawMessage `json:"response_headers"`
	Replayed        bool            `json:"replayed"`
	Problem         json.RawMessage `json:"problem"`   // the provider's own words (RFC 9457)
	Lookup          bool            `json:"lookup"`    // it asked, it did not act
	ServedBy        *string         `json:"served_by"` // the fallback that was called
	Reason          *string         `json:"reason"`
}

// Dossier is all there is to know of one intent.
type Dossier struct {
	Intent
	Payload json.RawMessage `json:"payload"`
	History []Attempt       `json:"history"`
}

// Filter narrows a listing; what is empty does not.
type Filter struct {
	Status   string
	Dead     bool // only what needs a human: failed, unknown for good, or not undone
	Provider string
	Run      string
	Limit    int
}

// isDead leaves out the unknown whose lookup may still tell, and what a saga
// that ended well has settled. A step that is unknown then still has its
// incident.
const isDead = ` AND status IN ('failed', 'unknown', 'compensation_failed') AND finished_at IS NOT NULL
	AND intent_id IN (SELECT intent_id FROM outbox.attempt WHERE next_attempt_at IS NULL
		AND status <> 'completed' AND status IN ('failed', 'unknown', 'compensation_failed'))
	AND ((status = 'unknown' AND NOT starts_with(step_id, 'compensate:')) OR NOT EXISTS (
		SELECT FROM outbox.saga g WHERE g.agent_run_id = status.agent_run_id AND g.state IN ('compensated', 'resolved')))`

const statusColumns = `intent_id, agent_run_id, step_id, tool_name, business_scope, provider, idempotency_key, status,
	attempts, next_attempt_at, last_outcome, last_error, http_status, response, provider_ref, created_at, finished_at`

// List returns the newest intents first.
func (c *Console) List(ctx context.Context, filter Filter) ([]Intent, error) {
	where := `($1::text = '' OR status = $1) AND ($2::text = '' OR provider = $2) AND ($3::text = '' OR agent_run_id = $3)`
	if filter.Dead {
		where += isDead
	}
	// CollectRows returns the error too.
	rows, _ := c.conn.Query(ctx, `SELECT `+statusColumns+` FROM outbox.status WHERE `+where+` ORDER BY intent_id DESC LIMIT $4`,
		filter.Status, filter.Provider, filter.Run, filter.Limit)
	intents, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Intent])
	if err != nil {
		return nil, fmt.Errorf("list intents: %w", err)
	}
	return intents, nil
}

// Show finds an intent by its id.
func (c *Console) Show(ctx context.Context, intentID int64) (*Dossier, error) {
	return c.show(ctx, `intent_id = $1`, intentID)
}

// ShowTuple finds an intent by its four-tuple.
func (c *Console) ShowTuple(ctx context.Context, t dispatch.Tuple) (*Dossier, error) {
	return c.show(ctx, `(agent_run_id, step_id, tool_name, business_scope) = ($1, $2, $3, $4)`,
		t.AgentRunID, t.StepID, t.ToolName, t.BusinessScope)
}

func (c *Console) show(ctx context.Context, where string, args ...any) (*Dossier, error) {
	rows, _ := c.conn.Query(ctx, `SELECT `+statusColumns+` FROM outbox.status WHERE `+where, args...)
	intent, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Intent])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("show intent: %w", err)
	}
	dossier := &Dossier{Intent: intent}
	if dossier.Payload, err = c.payload(ctx, intent.IntentID); err != nil {
		return nil, err
	}
	dossier.History, err = c.history(ctx, intent.IntentID)
	return dossier, err
}

func (c *Console) payload(ctx context.Context, intentID int64) (json.RawMessage, error) {
	var payload json.RawMessage
	err := c.conn.QueryRow(ctx, `SELECT payload FROM outbox.intent WHERE id = $1`, intentID).Scan(&payload)
	if err != nil {
		return nil, fmt.Errorf("read the intent's payload: %w", err)
	}
	return payload, nil
}

func (c *Console) history(ctx context.Context, intentID int64) ([]Attempt, error) {
	rows, _ := c.conn.Query(ctx, `SELECT attempt, worker, started_at, finished_at, outcome, status, next_attempt_at,
		http_status, error, provider_ref, response, response_headers, replayed, problem, lookup, served_by, reason
		FROM outbox.attempt WHERE intent_id = $1 ORDER BY attempt`, intentID)
	history, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Attempt])
	if err != nil {
		return nil, fmt.Errorf("read the intent's history: %w", err)
	}
	return history, nil
}
