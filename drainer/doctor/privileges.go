package doctor

// privilege is what the daemon's statements need of an object. Columns are
// those that a privilege may be narrowed to.
type privilege struct {
	kind    string // schema, table, column, sequence or function
	object  string
	column  string
	actions []string
}

func tables(actions []string, names ...string) (all []privilege) {
	for _, name := range names {
		all = append(all, privilege{kind: "table", object: "outbox." + name, actions: actions})
	}
	return all
}

func columns(action, table string, names ...string) (all []privilege) {
	for _, name := range names {
		all = append(all, privilege{kind: "column", object: "outbox." + table, column: name, actions: []string{action}})
	}
	return all
}

func functions(names ...string) (all []privilege) {
	for _, name := range names {
		all = append(all, privilege{kind: "function", object: "outbox." + name, actions: []string{"EXECUTE"}})
	}
	return all
}

func join(all ...[]privilege) (joined []privilege) {
	for _, some := range all {
		joined = append(joined, some...)
	}
	return joined
}

var usage = []privilege{{kind: "schema", object: "outbox", actions: []string{"USAGE"}}}

// daemonNeeds is what the migrations grant to outbox_drainer; a test holds the
// two together. River's tables are looked at as they are there.
var daemonNeeds = join(
	usage,
	tables([]string{"SELECT"},
		"intent", "queue", "claim", "attempt", "worker", "provider", "duplicate", "saga", "incident", "page", "watermark",
		"operation", "census", "status", "collisions", "last_collision", "goose_db_version",
		"audit_conflicting_refs", "audit_repeated_completions", "audit_repeated_tasks", "audit_duplicate_rate", "audit_attempts_per_completion"),
	tables([]string{"INSERT"},
		"queue", "claim", "attempt", "duplicate", "worker", "provider", "saga", "incident", "page", "watermark", "operation"),
	tables([]string{"UPDATE"}, "worker", "provider", "saga", "incident", "page", "watermark", "census"),
	tables([]string{"DELETE"}, "queue", "claim", "worker", "provider"),
	columns("INSERT", "intent", "agent_run_id", "step_id", "tool_name", "business_scope", "payload", "headers", "not_before", "compensates"),
	columns("UPDATE", "queue", "provider"),
	columns("UPDATE", "claim", "provider"),
	functions("idempotency_key", "prune", "hold", "hold_alone", "audit_repeated_tasks", "audit_duplicate_rate", "audit_attempts_per_completion"),
)

// agentsNeed is what the migrations grant to outbox_agent.
var agentsNeed = join(
	usage,
	tables([]string{"SELECT"}, "status"),
	columns("INSERT", "intent", "agent_run_id", "step_id", "tool_name", "business_scope", "payload", "headers", "not_before"),
	functions("enqueue", "idempotency_key"),
)
