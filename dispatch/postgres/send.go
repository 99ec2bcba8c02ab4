package postgres

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// inbox inserts into a table whose primary key is the tuple of the intent, so the table has an intent only once,
// however often it is sent.
type inbox struct {
	insert  string
	compare string
}

func newInbox(name string) (*inbox, error) {
	table, err := quote("inbox", name)
	if err != nil {
		return nil, err
	}
	return &inbox{
		insert: "INSERT INTO " + table + ` (agent_run_id, step_id, tool_name, business_scope, idempotency_key, payload, headers)
			VALUES ($1, $2, $3, $4, $5, $6::jsonb, $7::jsonb)
			ON CONFLICT (agent_run_id, step_id, tool_name, business_scope) DO NOTHING`,
		compare: "SELECT idempotency_key = $5::text, payload::jsonb = $6::jsonb FROM " + table + `
			WHERE agent_run_id = $1::text AND step_id = $2::text AND tool_name = $3::text AND business_scope = $4::text`,
	}, nil
}

// attempt inserts the row in a statement that is a transaction of its own. It waits for a concurrent insert of the
// same tuple to commit or to roll back.
func (i *inbox) attempt(ctx context.Context, conn *pgx.Conn, request dispatch.Request) dispatch.Result {
	// JSON is passed as a string: in the execution modes that work with a pooler, bytes would become bytea.
	key := request.Tuple
	tag, err := conn.Exec(ctx, i.insert, key.AgentRunID, key.StepID, key.ToolName, key.BusinessScope,
		request.IdempotencyKey, string(request.Payload), headersOf(request))
	switch {
	case err != nil:
		return failed(ctx, err)
	case tag.RowsAffected() == 1:
		return dispatch.Result{Outcome: dispatch.Completed}
	}
	return i.recognise(ctx, conn, request)
}

// recognise compares the intent with the existing row. It needs a second statement, since the snapshot of the first
// may be older than that row.
func (i *inbox) recognise(ctx context.Context, conn *pgx.Conn, request dispatch.Request) dispatch.Result {
	key := request.Tuple
	var sameKey, samePayload bool
	err := conn.QueryRow(ctx, i.compare, key.AgentRunID, key.StepID, key.ToolName, key.BusinessScope,
		request.IdempotencyKey, string(request.Payload)).Scan(&sameKey, &samePayload)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // the row was deleted since, or a trigger prevented the insert
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "row_missing"}
	case err != nil:
		return inDoubt(failed(ctx, err)) // there was a row, but its key and payload are unknown
	case !sameKey: // the row of another outbox, or of this intent under an older key
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "row_of_another_key"}
	case !samePayload:
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "payload_mismatch"}
	}
	return dispatch.Result{Outcome: dispatch.Completed, Replayed: true}
}

// headersOf returns the headers in a form that jsonb accepts. A broken trace context must not cause a refusal of the
// intent.
func headersOf(request dispatch.Request) string {
	text, err := json.Marshal(request.Headers)
	if err != nil || len(request.Headers) == 0 {
		return "{}"
	}
	return string(evidence.JSON(text, "application/json"))
}

// call is a tool that calls a function of the recipient in a transaction.
//
// Only the answer "completed" is committed. Every other answer, and every failure before COMMIT is sent, is rolled
// back. Then the database guarantees that there was no effect, and the function need not promise it.
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
		// The cast makes the server refuse a function of another result type before the function runs.
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
	defer func() { _ = transaction.Rollback(ctx) }() // does nothing after a commit; if it fails, the connection ends and with it the transaction
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
