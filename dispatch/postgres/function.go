package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
)

// call is a tool that calls a function of the recipient in a transaction.
//
// Only an answer of "completed" is committed. Whatever else the function says,
// and whatever fails before COMMIT is sent, is rolled back: that nothing has
// happened is then not the function's promise but the database's.
type call struct {
	query       string
	class       dispatch.Class
	transaction pgx.TxOptions
}

func newCall(name string, class dispatch.Class) (*call, error) {
	function, err := quote("function", name)
	if err != nil {
		return nil, err
	}
	c := &call{
		// The cast refuses a function of another type before it runs.
		query: "SELECT (" + function + "($1::jsonb, $2::text, $3::text, $4::text, $5::text, $6::text))::jsonb::text",
		class: class,
	}
	if class == dispatch.ReadOnly {
		c.transaction.AccessMode = pgx.ReadOnly
	}
	return c, nil
}

func (c *call) attempt(ctx context.Context, conn *pgx.Conn, request dispatch.Request) dispatch.Result {
	transaction, err := conn.BeginTx(ctx, c.transaction)
	if err != nil {
		return unbegun(ctx, err)
	}
	defer func() { _ = transaction.Rollback(ctx) }() // after a commit it does nothing; a failure ends the connection, and that the transaction
	answer, err := c.ask(ctx, transaction, request)
	if err != nil {
		return withoutEffect(failed(ctx, err))
	}
	result := answer.judge(c.class)
	if result.Outcome != dispatch.Completed {
		return result
	}
	if err := transaction.Commit(ctx); err != nil {
		return uncommitted(ctx, err)
	}
	return result
}

func (c *call) ask(ctx context.Context, transaction pgx.Tx, request dispatch.Request) (answer, error) {
	key := request.Tuple
	rows, err := transaction.Query(ctx, c.query, string(request.Payload), request.IdempotencyKey,
		key.AgentRunID, key.StepID, key.ToolName, key.BusinessScope)
	if err != nil {
		return answer{}, err
	}
	text, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[*string])
	if err != nil {
		return answer{}, err
	}
	return parseAnswer(text), nil
}
