package mcp_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// charge books one charge for each key. The key and the effect are in one commit.
func charge(db *pgxpool.Pool) mcp.ToolHandler {
	return func(ctx context.Context, call *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		key, _ := call.Params.Meta["io.github.agentoutbox/idempotency-key"].(string)
		if key == "" {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "no idempotency key"}
		}
		booked, err := db.Exec(ctx, `INSERT INTO charge (key, arguments) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING`, key, call.Params.Arguments)
		if err != nil {
			return nil, err // drainer takes this for ambiguous, and calls again with the same key
		}
		var id int64
		var same bool
		if err := db.QueryRow(ctx, `SELECT id, arguments = $2 FROM charge WHERE key = $1`, key, call.Params.Arguments).Scan(&id, &same); err != nil {
			return nil, err
		}
		if !same {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "the key was used with other arguments"}
		}
		return &mcp.CallToolResult{
			Meta:              mcp.Meta{"io.github.agentoutbox/replayed": booked.RowsAffected() == 0},
			StructuredContent: map[string]any{"id": id},
			Content:           []mcp.Content{&mcp.TextContent{Text: "charged"}},
		}, nil
	}
}
