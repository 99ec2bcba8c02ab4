package postgres

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
)

// Settings is the provider's `postgres` block.
type Settings struct {
	URL string `yaml:"url" jsonschema:"required" jsonschema_description:"Where the recipient's database is, with user and password: postgres://drainer:secret@db.example.com/shop. TLS with a verified certificate unless it says sslmode=disable. default_query_exec_mode=exec fits a pooler without prepared statements."`
}

// Tool is a tool's `postgres` block: one of the two.
type Tool struct {
	Inbox    string `yaml:"inbox,omitempty" jsonschema_description:"The table, as schema.table, that gets one row for each intent."`
	Function string `yaml:"function,omitempty" jsonschema_description:"The function, as schema.name, that is called in a transaction: (payload jsonb, key text, agent_run_id text, step_id text, tool_name text, business_scope text) RETURNS jsonb."`
}

func newTool(spec dispatch.ToolSpec) (tool, error) {
	var block Tool
	if err := blocks.Decode(spec.Settings, &block); err != nil {
		return nil, err
	}
	if (block.Inbox == "") == (block.Function == "") {
		return nil, errors.New("set one of inbox and function")
	}
	if block.Function != "" {
		return newCall(block.Function, spec.Class)
	}
	if spec.Class == dispatch.ReadOnly || spec.AnswersLookups {
		return nil, errors.New("an inbox is written to; what reads or answers lookups is a function")
	}
	return newInbox(block.Inbox)
}

var qualifiedName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_$]{0,62})\.([A-Za-z_][A-Za-z0-9_$]{0,62})$`)

// quote makes SQL of a name that the configuration gives. Upper case counts.
func quote(field, name string) (string, error) {
	parts := qualifiedName.FindStringSubmatch(name)
	if parts == nil {
		return "", fmt.Errorf("%s: write schema.name, of letters, digits and underscores", field)
	}
	return pgx.Identifier(parts[1:]).Sanitize(), nil
}
