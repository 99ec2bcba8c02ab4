package history

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
)

// Answer is what an agent was told of its commit.
type Answer string

// An agent that heard nothing must count with both.
const (
	Committed Answer = "committed"
	Refused   Answer = "refused" // the database said no, or the agent rolled back
	Unheard   Answer = "unheard"
)

// Clients is what all agents were told, by idempotency key. The zero value is
// ready; any number of agents may use it at once.
type Clients struct {
	mu      sync.Mutex
	answers map[string]Answer
}

// Beginner begins the agent's own transaction.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Enqueue commits one intent as an agent does, and writes down the answer. An
// agent may repeat itself.
func (c *Clients) Enqueue(ctx context.Context, db Beginner, intent dispatch.Tuple, payload json.RawMessage) Answer {
	answer := enqueue(ctx, db, intent, payload)
	c.note(intent.IdempotencyKey(), answer)
	return answer
}

// note keeps what an earlier try may have left: the refusal of a later one says
// nothing of it.
func (c *Clients) note(key string, answer Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers == nil {
		c.answers = map[string]Answer{}
	}
	before := c.answers[key]
	if before == Committed || (before == Unheard && answer == Refused) {
		return
	}
	c.answers[key] = answer
}

// Answers is what was written down so far.
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
		return Refused // without a commit there is nothing
	}
	return heard(tx.Commit(ctx))
}

// heard takes the server's word for a refusal. Anything else may have come
// after the commit, and so may the last words of a server that goes away.
func heard(err error) Answer {
	var said *pgconn.PgError
	switch {
	case err == nil:
		return Committed
	case errors.As(err, &said) && said.SeverityUnlocalized == "ERROR", errors.Is(err, pgx.ErrTxCommitRollback):
		return Refused
	}
	return Unheard
}
