package postgres

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/storable"
)

// inbox delivers into a table whose primary key is the intent's own, so that
// an intent is there once, whoever sends it and however often.
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
		compare: "SELECT payload::jsonb = $5::jsonb FROM " + table + `
			WHERE agent_run_id = $1 AND step_id = $2 AND tool_name = $3 AND business_scope = $4`,
	}, nil
}

// attempt inserts in a statement that is its own transaction. It waits for a
// concurrent insert of the same key to commit or to roll back.
func (i *inbox) attempt(ctx context.Context, conn *pgx.Conn, request dispatch.Request) dispatch.Result {
	// JSON goes as text: in the execution modes that fit a pooler, octets
	// would become bytea.
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

// recognise looks at the row that is in the way. It needs a statement of its
// own: the first one's snapshot may be older than that row.
func (i *inbox) recognise(ctx context.Context, conn *pgx.Conn, request dispatch.Request) dispatch.Result {
	key := request.Tuple
	var same bool
	err := conn.QueryRow(ctx, i.compare, key.AgentRunID, key.StepID, key.ToolName, key.BusinessScope,
		string(request.Payload)).Scan(&same)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // deleted since, or never inserted by a trigger's decision
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "row_missing"}
	case err != nil:
		return inDoubt(failed(ctx, err)) // there is a row, and nobody knows what it says
	case !same:
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "payload_mismatch"}
	}
	return dispatch.Result{Outcome: dispatch.Completed, Replayed: true}
}

// headersOf leaves out nothing that jsonb can take: a broken trace context is
// no reason to refuse an intent.
func headersOf(request dispatch.Request) string {
	text, err := json.Marshal(request.Headers)
	if err != nil || len(request.Headers) == 0 {
		return "{}"
	}
	return string(storable.JSON(text, "application/json"))
}
