package demo

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
)

const stepsPerRun = 5

// step is what an agent decides at one point of its run.
type step struct {
	tuple   dispatch.Tuple
	payload map[string]any
}

// stepNumber invents the n-th step of the demo; the same number again is the
// same step.
func stepNumber(n int) step {
	s := step{tuple: dispatch.Tuple{
		AgentRunID: fmt.Sprintf("run-%05d", n/stepsPerRun),
		StepID:     fmt.Sprintf("step-%d", n%stepsPerRun+1),
	}}
	switch n % 3 {
	case 0:
		s.tuple.ToolName, s.tuple.BusinessScope = "payments/charge", fmt.Sprintf("invoice_%05d", n)
		s.payload = map[string]any{"amount": 1000 + n, "currency": "eur"}
	case 1:
		s.tuple.ToolName, s.tuple.BusinessScope = "mail/send", fmt.Sprintf("customer_%05d", n)
		s.payload = map[string]any{"to": fmt.Sprintf("customer-%05d@example.com", n), "template": "receipt"}
	default:
		s.tuple.ToolName, s.tuple.BusinessScope = "tickets/open", fmt.Sprintf("order_%05d", n)
		s.payload = map[string]any{"queue": "returns/eu", "title": fmt.Sprintf("Order %d", n)}
	}
	return s
}

// write keeps the agent's own state and enqueues the intent, in one transaction.
func (s step) write(ctx context.Context, tx pgx.Tx) error {
	payload, err := json.Marshal(s.payload)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO agent_state VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		s.tuple.AgentRunID, s.tuple.StepID, s.tuple.ToolName); err != nil {
		return fmt.Errorf("keep the step: %w", err)
	}
	if _, err := tx.Exec(ctx, `SELECT outbox.enqueue($1, $2, $3, $4, $5)`,
		s.tuple.AgentRunID, s.tuple.StepID, s.tuple.ToolName, s.tuple.BusinessScope, payload); err != nil {
		return fmt.Errorf("enqueue: %w", err)
	}
	return nil
}
