package doctor

import (
	"context"
	"fmt"
	"strings"
)

// excess is something that agents may do and should not.
type excess struct{ Action, Object string }

// excessSQL looks at what a role may do in effect: by grants to it, to PUBLIC
// and to the roles that it is a member of. Functions that run with the rights
// of whoever calls them give nobody any.
const excessSQL = `
	WITH agent AS (SELECT oid FROM pg_roles WHERE rolname = $1)
	SELECT a.action, 'outbox.' || c.relname
	FROM agent, pg_class c
	CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS a (action)
	WHERE c.relnamespace = to_regnamespace('outbox') AND c.relkind IN ('r', 'p', 'v')
	  AND (c.relname, a.action) <> ('status', 'SELECT') AND (c.relname, a.action) <> ('intent', 'INSERT')
	  AND (has_table_privilege(agent.oid, c.oid, a.action)
	    OR a.action IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES') AND has_any_column_privilege(agent.oid, c.oid, a.action))
	UNION ALL
	SELECT 'INSERT (' || c.attname || ')', 'outbox.intent'
	FROM agent, pg_attribute c JOIN pg_class t ON t.oid = c.attrelid
	WHERE t.relnamespace = to_regnamespace('outbox') AND t.relname = 'intent' AND c.attnum > 0 AND NOT c.attisdropped
	  AND c.attname IN ('id', 'compensates', 'created_at') AND has_column_privilege(agent.oid, c.attrelid, c.attnum, 'INSERT')
	UNION ALL
	SELECT a.action, 'SEQUENCE outbox.' || c.relname
	FROM agent, pg_class c CROSS JOIN unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) AS a (action)
	WHERE c.relnamespace = to_regnamespace('outbox') AND c.relkind = 'S' AND has_sequence_privilege(agent.oid, c.oid, a.action)
	UNION ALL
	SELECT 'EXECUTE', 'FUNCTION outbox.' || p.proname
	FROM agent, pg_proc p
	WHERE p.pronamespace = to_regnamespace('outbox') AND p.prosecdef AND p.proname <> 'enqueue'
	  AND has_function_privilege(agent.oid, p.oid, 'EXECUTE')
	UNION ALL
	SELECT 'CREATE', 'SCHEMA outbox'
	FROM agent WHERE has_schema_privilege(agent.oid, to_regnamespace('outbox')::oid, 'CREATE')
	ORDER BY 2, 1`

func lookAtAgentGrants(ctx context.Context, x *examination) (found []Finding, err error) {
	var exists bool
	if err := x.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", agentRole).Scan(&exists); err != nil {
		return nil, err
	}
	if !exists {
		return []Finding{problem("CREATE ROLE outbox_agent NOLOGIN; then drainer migrate down and up, or the grants of migration 4 by hand", "there is no role %s", agentRole)}, nil
	}
	lacks, err := x.lacks(ctx, agentRole, agentRole, agentsNeed)
	if err != nil {
		return nil, err
	}
	if gone, found := theGone(lacks); found {
		return []Finding{gone}, nil
	}
	if len(lacks) > 0 {
		found = append(found, problem(grants(lacks, agentRole), "agents cannot enqueue or read the status: %s lacks %s", agentRole, describe(lacks)))
	}
	extra, err := read[excess](ctx, x, excessSQL, agentRole)
	if err != nil {
		return nil, err
	}
	if len(extra) > 0 {
		found = append(found, judgeExcess(extra))
	}
	if len(found) == 0 {
		found = append(found, ok("%s may enqueue and read the status, and nothing else", agentRole))
	}
	return found, nil
}

func judgeExcess(extra []excess) Finding {
	names, statements := make([]string, len(extra)), make([]string, len(extra))
	for i, e := range extra {
		names[i] = e.Action + " on " + e.Object
		statements[i] = fmt.Sprintf("REVOKE %s ON %s FROM %s, PUBLIC;", e.Action, e.Object, agentRole)
	}
	return problem(strings.Join(statements, " ")+" If it stays so, the role is a member of another one: REVOKE that.",
		"%s may do what agents must not: %s", agentRole, abridge(names))
}
