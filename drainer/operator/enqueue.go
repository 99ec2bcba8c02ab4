package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/jackc/pgx/v5/pgconn"
)

// Receipt is what outbox.enqueue tells a producer.
type Receipt struct {
	IntentID       int64  `json:"intent_id"`
	Created        bool   `json:"created"` // false: the key was there already
	Status         string `json:"status"`
	IdempotencyKey string `json:"idempotency_key"`
}

// Enqueue commits one intent in a transaction of its own.
func (c *Console) Enqueue(ctx context.Context, tuple dispatch.Tuple, payload json.RawMessage) (Receipt, error) {
	var receipt Receipt
	if err := tuple.Validate(); err != nil {
		return receipt, err
	}
	err := c.conn.QueryRow(ctx, `SELECT intent_id, created, status, idempotency_key FROM outbox.enqueue($1, $2, $3, $4, $5)`,
		tuple.AgentRunID, tuple.StepID, tuple.ToolName, tuple.BusinessScope, payload,
	).Scan(&receipt.IntentID, &receipt.Created, &receipt.Status, &receipt.IdempotencyKey)
	if err != nil {
		return receipt, fmt.Errorf("enqueue: %w%s", err, hint(err))
	}
	return receipt, nil
}

// hint is what the schema advises; it carries no payload and no key.
func hint(err error) string {
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) || !strings.HasPrefix(refusal.Code, "OB") || refusal.Hint == "" {
		return ""
	}
	return ". " + refusal.Hint
}
