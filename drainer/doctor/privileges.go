package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/migrations"
)

// SchemaCheck is the name of the check that finds a problem if the schema is older than this program.
const SchemaCheck = "schema"

var schemaChecks = []check{
	{name: SchemaCheck, well: "every migration of drainer and of River is applied", look: func(ctx context.Context, x *examination) ([]Finding, error) {
		missing, newer, err := migrations.Compare(ctx, x.pool)
		switch {
		case errors.Is(err, migrations.ErrEdited):
			return []Finding{problem("run a released drainer", "%v", err)}, nil
		case err != nil:
			return nil, err
		case len(missing) > 0:
			return []Finding{problem("drainer migrate up, as the schema's owner", "migrations are missing: %s", list(missing))}, nil
		case len(newer) > 0:
			return []Finding{warning("upgrade this drainer", "the schema has migrations that this drainer does not know: %s", list(newer))}, nil
		}
		exists, valid, err := migrations.HasReferences(ctx, x.pool)
		switch {
		case err != nil || !exists:
			return nil, err
		case !valid:
			return []Finding{warning("drainer migrate references on, or off, as the schema's owner", "the index of references is not whole, unless it is being built: it serves no search, and every write pays for it")}, nil
		}
		return []Finding{ok("every migration of drainer and of River is applied, and references have their index")}, nil
	}},

	{name: "ownership", look: ofTheSchema(each(`
		SELECT owner.rolname,
			ARRAY(
				SELECT c.relname::text FROM pg_class c
				WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v', 'S') AND c.relowner <> n.nspowner
				UNION ALL
				SELECT p.proname::text || '()' FROM pg_proc p WHERE p.pronamespace = n.oid AND p.proowner <> n.nspowner
				ORDER BY 1),
			pg_has_role(n.nspowner, 'MEMBER'::text), me.rolsuper, me.rolname, owner.rolsuper
		FROM pg_namespace n JOIN pg_roles owner ON owner.oid = n.nspowner, pg_roles me
		WHERE n.nspname = 'outbox' AND me.rolname = current_user`,
		func(_ *examination, seen struct {
			Owner            string   // of the schema
			Strays           []string // objects in the schema that belong to another role
			IsOwner          bool     // the daemon's role is, or may become, the owner
			Superuser        bool
			Role             string
			OwnerIsSuperuser bool
		},
		) (found []Finding) {
			if len(seen.Strays) > 0 {
				found = append(found, warning(fmt.Sprintf("ALTER … outbox.… OWNER TO %s;", quote(seen.Owner)),
					"the schema belongs to %s, but not these: %s; migrations will stop at them", seen.Owner, abridge(seen.Strays)))
			}
			switch cure := "let the daemon log in as a role of its own: CREATE ROLE drainer LOGIN PASSWORD …; GRANT outbox_drainer TO drainer;"; {
			case seen.Superuser:
				found = append(found, warning(cure, "%s is a superuser: nothing keeps the daemon from changing what agents committed", seen.Role))
			case seen.IsOwner:
				found = append(found, warning(cure, "%s owns the schema: nothing keeps the daemon from changing what agents committed", seen.Role))
			}
			if seen.OwnerIsSuperuser {
				found = append(found, warning("migrate a new database as a login that is none: docs/security.md",
					"%s, who owns the schema, is a superuser: its functions run with all rights on the server", seen.Owner))
			}
			if len(found) == 0 {
				found = append(found, ok("the schema and all in it belong to %s; %s only works with it", seen.Owner, seen.Role))
			}
			return found
		}))},

	// A login that works with the outbox looks names up in its search_path. Functions and operators that
	// other logins have created there would run with its rights.
	{name: "search path", well: "no login of the daemon, operators, auditors or owner looks at schemas of others", look: each(`
		SELECT d.datname,
			ARRAY(
				SELECT r.rolname::text FROM pg_roles r
				WHERE r.rolcanlogin AND (r.rolname = current_user OR NOT r.rolsuper)
				  AND has_database_privilege(r.oid, d.oid, 'CONNECT'::text)
				  AND (r.rolname = current_user OR r.oid = (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'outbox')
				    OR EXISTS (SELECT FROM pg_roles m WHERE m.rolname IN ('outbox_drainer', 'outbox_operator', 'outbox_auditor') AND pg_has_role(r.oid, m.oid, 'MEMBER'::text)))
				  AND (SELECT c FROM pg_db_role_setting s CROSS JOIN pg_catalog.unnest(s.setconfig) c
				    WHERE s.setrole IN (r.oid, 0::oid) AND s.setdatabase IN (d.oid, 0::oid) AND starts_with(c, 'search_path='::text)
				    ORDER BY s.setrole <> 0::oid DESC, s.setdatabase <> 0::oid DESC LIMIT 1)
				    ~ '^search_path=(""|("?(pg_catalog|pg_temp|outbox)"?(, |$))+)$' IS NOT TRUE
				ORDER BY 1),
			EXISTS (SELECT FROM aclexplode(coalesce(d.datacl, acldefault('d'::"char", d.datdba))) a WHERE a.grantee = 0::oid AND a.privilege_type = 'TEMPORARY'),
			ARRAY(
				SELECT n.nspname::text FROM pg_namespace n
				WHERE n.nspname = 'public' AND (
				  EXISTS (SELECT FROM aclexplode(n.nspacl) a WHERE a.grantee = 0::oid AND a.privilege_type = 'CREATE')
				  OR EXISTS (SELECT FROM pg_roles m WHERE m.rolname = 'outbox_agent' AND has_schema_privilege(m.oid, n.oid, 'CREATE'::text))))
		FROM pg_database d WHERE d.datname = current_database()`,
		func(_ *examination, seen struct {
			Database  string
			Unpinned  []string // logins of the daemon, operators, auditors and owner
			Temporary bool     // all logins may create temporary objects
			Creators  []string // schemas in which others may create
		},
		) (found []Finding) {
			for _, login := range seen.Unpinned {
				found = append(found, warning(fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET search_path = pg_catalog, pg_temp;", quote(login), quote(seen.Database)),
					"%s has no search_path of its own: behind a pooler, and in psql, it looks at schemas of others", login))
			}
			if seen.Temporary {
				found = append(found, warning(fmt.Sprintf("REVOKE TEMPORARY ON DATABASE %s FROM PUBLIC;", quote(seen.Database)),
					"all logins may create temporary objects, which are found before those of the system"))
			}
			for _, schema := range seen.Creators {
				found = append(found, warning(fmt.Sprintf("REVOKE CREATE ON SCHEMA %s FROM PUBLIC, outbox_agent;", quote(schema)),
					"others may create functions and operators in schema %s, which is in the usual search_path", schema))
			}
			return found
		})},

	{name: "daemon's grants", look: func(ctx context.Context, x *examination) ([]Finding, error) {
		role := drainerRole
		if !x.Bystander {
			if err := x.pool.QueryRow(ctx, "SELECT current_user::text").Scan(&role); err != nil {
				return nil, err
			}
		}
		river, err := x.riverNeeds(ctx)
		if err != nil {
			return nil, err
		}
		lacks, err := x.lacks(ctx, role, drainerRole, append(slices.Clone(daemonNeeds), river...))
		switch gone, isGone := theGone(lacks); {
		case err != nil:
			return nil, err
		case isGone:
			return []Finding{gone}, nil
		case len(lacks) == 0:
			return []Finding{ok("%s may do what the daemon does", role)}, nil
		case !slices.ContainsFunc(lacks, func(l lack) bool { return !l.RoleHasIt }):
			return []Finding{problem(membership(role), "%s lacks what the role %s has: %s", role, drainerRole, describe(lacks))}, nil
		}
		return []Finding{problem(grants(lacks, drainerRole), "%s lacks %s", role, describe(lacks))}, nil
	}},

	// If one login has both roles, the history does not prove whether the daemon or an operator made an
	// entry.
	{name: "operators' grants", look: byGroup(operatorRole, operatorsNeed, "operators cannot do their work",
		func(ctx context.Context, x *examination) (found []Finding, err error) {
			var login string
			var both bool
			err = x.pool.QueryRow(ctx, `SELECT session_user::text, pg_has_role(session_user, role.oid, 'MEMBER'::text) AND NOT me.rolsuper
				FROM pg_roles me, pg_roles role WHERE role.rolname = $1::name AND me.rolname = session_user`, operatorRole).Scan(&login, &both)
			if both {
				return []Finding{warning(fmt.Sprintf("REVOKE %s FROM %s; operators log in as others", operatorRole, quote(login)),
					"%s has the role %s too: the daemon can write history as an operator", login, operatorRole)}, err
			}
			return []Finding{ok("%s may decide on intents, runs and incidents; %s may not", operatorRole, login)}, err
		})},

	{name: "agents' grants", look: byGroup(agentRole, agentsNeed, "agents cannot enqueue or read the status",
		func(ctx context.Context, x *examination) ([]Finding, error) {
			extra, err := x.excessOfAgents(ctx)
			if len(extra) > 0 {
				return []Finding{judgeExcess(agentRole, "agents", extra)}, err
			}
			return []Finding{ok("%s may enqueue, read the status and which tools are served, and nothing else", agentRole)}, err
		})},

	{name: "auditors' grants", look: byGroup(auditorRole, auditorsNeed, "auditors, and viewers of the console, cannot read",
		func(ctx context.Context, x *examination) ([]Finding, error) {
			extra, err := read[excess](ctx, x, excessSQL, auditorRole, onlyReads, readingFunctions)
			if err != nil {
				return nil, err
			}
			key := excess{"SELECT", "outbox.fingerprint_key"} // the one table that auditors may not read
			var readsIt bool
			err = x.pool.QueryRow(ctx, `SELECT has_any_column_privilege($1::name, to_regclass($2::text)::oid, 'SELECT'::text) IS TRUE`, auditorRole, key.Object).Scan(&readsIt)
			if err != nil {
				return nil, err
			}
			if readsIt {
				extra = append(extra, key)
			}
			ofAll, err := x.excessOfAgents(ctx)
			// Rights that agents have too are a finding about agents.
			if extra = slices.DeleteFunc(extra, func(e excess) bool { return slices.Contains(ofAll, e) }); len(extra) > 0 {
				return []Finding{judgeExcess(auditorRole, "auditors", extra)}, err
			}
			return []Finding{ok("%s may read all, and change nothing", auditorRole)}, err
		})},
}

// ofTheSchema adds a finding to a look that returns none because the schema does not exist.
func ofTheSchema(inner look) look {
	return func(ctx context.Context, x *examination) ([]Finding, error) {
		found, err := inner(ctx, x)
		if err == nil && len(found) == 0 {
			found = []Finding{notChecked("see schema", "there is no schema outbox")}
		}
		return found, err
	}
}

// byGroup returns a look for the rights that a group role lacks, followed by the look also. The OK findings of also count
// only if the role lacks nothing.
func byGroup(role string, needs []privilege, lacking string, also look) look {
	return func(ctx context.Context, x *examination) ([]Finding, error) {
		var exists bool
		if err := x.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1::name)", role).Scan(&exists); err != nil {
			return nil, err
		}
		if !exists {
			return []Finding{problem(fmt.Sprintf("CREATE ROLE %s NOLOGIN; then drainer migrate down and up, or the grants of migration 4 by hand", role), "there is no role %s", role)}, nil
		}
		lacks, err := x.lacks(ctx, role, role, needs)
		if err != nil {
			return nil, err
		}
		if gone, isGone := theGone(lacks); isGone {
			return []Finding{gone}, nil
		}
		found, err := also(ctx, x)
		if err != nil || len(lacks) == 0 {
			return found, err
		}
		lack := problem(grants(lacks, role), "%s: %s lacks %s", lacking, role, describe(lacks))
		return append([]Finding{lack}, slices.DeleteFunc(found, func(f Finding) bool { return f.Verdict == OK })...), nil
	}
}

// privilege names the rights that statements need on an object, or on a column of it.
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

var usage = []privilege{{kind: "schema", object: "outbox", actions: []string{"USAGE"}}}

// readNeeds are the rights to read that daemons, operators and auditors share.
var readNeeds = slices.Concat(
	usage,
	tables([]string{"SELECT"},
		"intent", "queue", "claim", "attempt", "worker", "tool", "provider", "duplicate", "generation", "saga", "incident", "page", "watermark",
		"operation", "census", "minute", "breaker_change", "setting", "tenant", "run", "history", "forgotten", "standing", "status", "collisions", "last_collision", "goose_db_version",
		"audit_conflicting_refs", "audit_repeated_completions", "audit_repeated_tasks", "audit_duplicate_rate", "audit_attempts_per_completion"),
	functions("idempotency_key", "whereabouts", "in_doubt", "queued_tenants", "sees_all", "session_tenant", "audit_repeated_tasks", "audit_duplicate_rate", "audit_attempts_per_completion"),
)

// daemonNeeds are the rights that the migrations grant to outbox_drainer. A test compares them with the
// migrations. The rights on River's tables come from the catalog.
var daemonNeeds = slices.Concat(
	readNeeds,
	tables([]string{"SELECT"}, "fingerprint_key"),
	tables([]string{"INSERT"}, "queue", "claim", "worker", "page", "watermark", "minute"),
	tables([]string{"UPDATE"}, "worker", "page", "watermark", "census", "minute"),
	tables([]string{"DELETE"}, "queue", "claim", "worker", "tool", "minute"),
	columns("INSERT", "intent", "agent_run_id", "step_id", "tool_name", "business_scope", "payload", "headers", "not_before", "compensates", "namespace", "tenant"),
	columns("UPDATE", "queue", "provider"),
	columns("UPDATE", "claim", "attempts", "first_attempt_ats", "intent_ids", "lookups", "maybe_applied", "tries", "vias"),
	columns("INSERT", "attempt", "intent_id", "attempt", "worker", "started_at", "finished_at", "outcome", "status", "next_attempt_at",
		"http_status", "error", "provider_ref", "response", "response_headers", "problem", "retry_after_seconds", "replayed", "lookup", "served_by"),
	columns("INSERT", "tool", "name"),
	columns("UPDATE", "tool", "seen_at", "state", "reason", "open_until", "prober", "shut_at", "refused_at", "refused_intent", "rendered"),
	columns("INSERT", "provider", "name", "namespace"),
	columns("UPDATE", "provider", "idle_until", "state", "reason", "open_until", "prober", "shut_at", "refused_at", "refused_intent", "namespace"),
	columns("INSERT", "history", "id", "system_identifier", "timeline", "lsn", "table_oid", "database_oid", "change", "awaited", "era", "doubted_before", "doubted_through", "accepted_by", "accepted_at"),
	columns("UPDATE", "history", "system_identifier", "timeline", "lsn", "seen_at", "awaited", "found", "lost", "era", "doubted_before", "doubted_through", "accepted_by", "accepted_at"),
	columns("INSERT", "saga", "agent_run_id", "cause"),
	columns("UPDATE", "saga", "state", "ended_at", "moves_at", "passes", "leased_until", "plan", "place", "ready"),
	columns("INSERT", "incident", "kind", "intent_id", "agent_run_id", "detail"),
	columns("UPDATE", "incident", "detail", "opened_at", "resolved_at", "resolved_by"),
	functions("prune", "hold", "hold_alone", "retention_floor", "room_in_flight"),
)

// auditorsNeed are the rights that the migrations grant to outbox_auditor, which viewers of the console have too.
var auditorsNeed = append(tables([]string{"SELECT"}, "river_migration"), readNeeds...)

// operatorsNeed are the rights that the migrations grant to outbox_operator.
var operatorsNeed = slices.Concat(
	auditorsNeed,
	tables([]string{"INSERT", "DELETE"}, "queue"),
	tables([]string{"INSERT", "UPDATE"}, "generation"),
	columns("UPDATE", "queue", "provider"),
	columns("INSERT", "attempt", "intent_id", "attempt", "operator", "outcome", "status", "next_attempt_at", "provider_ref", "reason"),
	columns("UPDATE", "saga", "moves_at", "plan"),
	columns("UPDATE", "incident", "acknowledged_at", "acknowledged_by", "reason", "resolved_at", "resolved_by"),
	functions("operate_provider", "operate_run", "accept_history", "hold", "retention_floor"),
)

// agentsNeed are the rights that the migrations grant to outbox_agent.
var agentsNeed = slices.Concat(
	usage,
	tables([]string{"SELECT"}, "status", "tool"),
	columns("INSERT", "intent", "agent_run_id", "step_id", "tool_name", "business_scope", "payload", "headers", "not_before"),
	functions("enqueue", "await", "arm", "idempotency_key", "sees_all", "session_tenant"),
)

const (
	drainerRole  = "outbox_drainer"
	operatorRole = "outbox_operator"
	agentRole    = "outbox_agent"
	auditorRole  = "outbox_auditor"
)

// lack is one privilege that a role does not have.
type lack struct {
	Kind, Object, Column, Action string
	RoleHasIt                    bool // the group role has the privilege, so only the membership is missing
	IsGone                       bool // the object does not exist
}

func (l lack) String() string {
	if l.Column != "" {
		return fmt.Sprintf("%s (%s) on %s", l.Action, l.Column, l.Object)
	}
	return l.Action + " on " + l.Object
}

// lacksSQL returns the privileges that a role does not have, and whether another role has them.
const lacksSQL = `
	SELECT p.kind, p.object, p.col, p.action, coalesce(holds.other, false), id.oid IS NULL
	FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS p (kind, object, col, action, nth)
	CROSS JOIN LATERAL (SELECT
		CASE p.kind
		WHEN 'schema' THEN to_regnamespace(p.object)::oid
		WHEN 'function' THEN (SELECT oid FROM pg_proc WHERE pronamespace = to_regnamespace('outbox'::text)::oid AND proname = split_part(p.object, '.'::text, 2) LIMIT 1)
		ELSE (SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace('outbox'::text)::oid AND relname = split_part(p.object, '.'::text, 2))
		END AS oid, (SELECT oid FROM pg_roles WHERE rolname = $5::name) AS me, (SELECT oid FROM pg_roles WHERE rolname = $6::name) AS other) id
	CROSS JOIN LATERAL (SELECT CASE p.kind
		WHEN 'schema' THEN has_schema_privilege(id.me, id.oid, p.action)
		WHEN 'function' THEN has_function_privilege(id.me, id.oid, p.action)
		WHEN 'sequence' THEN has_sequence_privilege(id.me, id.oid, p.action)
		WHEN 'column' THEN has_column_privilege(id.me, id.oid, p.col, p.action)
		ELSE has_table_privilege(id.me, id.oid, p.action) END AS mine,
		CASE p.kind
		WHEN 'schema' THEN has_schema_privilege(id.other, id.oid, p.action)
		WHEN 'function' THEN has_function_privilege(id.other, id.oid, p.action)
		WHEN 'sequence' THEN has_sequence_privilege(id.other, id.oid, p.action)
		WHEN 'column' THEN has_column_privilege(id.other, id.oid, p.col, p.action)
		ELSE has_table_privilege(id.other, id.oid, p.action) END AS other) holds
	WHERE id.oid IS NULL OR NOT holds.mine
	ORDER BY p.nth`

// riverSQL lists River's tables, sequences and functions.
const riverSQL = `
	SELECT CASE relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, 'outbox.' || relname::text
	FROM pg_class WHERE relnamespace = to_regnamespace('outbox'::text)::oid AND relkind IN ('r', 'S') AND relname::text LIKE 'river\_%'
	UNION ALL
	SELECT 'function', 'outbox.' || proname::text
	FROM pg_proc WHERE pronamespace = to_regnamespace('outbox'::text)::oid AND proname::text LIKE 'river\_%'
	ORDER BY 1, 2`

func (x *examination) riverNeeds(ctx context.Context) (needs []privilege, err error) {
	type object struct{ Kind, Name string }
	objects, err := read[object](ctx, x, riverSQL)
	if err != nil {
		return nil, err
	}
	actions := map[string][]string{
		"table":    {"SELECT", "INSERT", "UPDATE", "DELETE"},
		"sequence": {"USAGE", "SELECT"},
		"function": {"EXECUTE"},
	}
	for _, o := range objects {
		needs = append(needs, privilege{kind: o.Kind, object: o.Name, actions: actions[o.Kind]})
	}
	return needs, nil
}

func (x *examination) lacks(ctx context.Context, role, other string, needs []privilege) ([]lack, error) {
	var kinds, objects, columns, actions []string
	for _, need := range needs {
		for _, action := range need.actions {
			kinds, objects = append(kinds, need.kind), append(objects, need.object)
			columns, actions = append(columns, need.column), append(actions, action)
		}
	}
	return read[lack](ctx, x, lacksSQL, kinds, objects, columns, actions, role, other)
}

// theGone returns a finding if an object does not exist, since no right on it can be granted.
func theGone(lacks []lack) (Finding, bool) {
	i := slices.IndexFunc(lacks, func(l lack) bool { return l.IsGone })
	if i < 0 {
		return Finding{}, false
	}
	return notChecked("see schema", "%s %s does not exist", lacks[i].Kind, lacks[i].Object), true
}

func describe(lacks []lack) string {
	texts := make([]string, len(lacks))
	for i, l := range lacks {
		texts[i] = l.String()
	}
	return abridge(texts)
}

// membership returns the cure for a login that is not a member of the daemon's role, or does not inherit from it.
func membership(role string) string {
	return fmt.Sprintf("GRANT %s TO %s; if it is a member already: ALTER ROLE %[2]s INHERIT; and, from Postgres 16, GRANT %[1]s TO %[2]s WITH INHERIT TRUE;",
		drainerRole, quote(role))
}

// grants returns the statements that give a role the missing rights.
func grants(lacks []lack, role string) string {
	statements := make([]string, len(lacks))
	for i, l := range lacks {
		action, object := l.Action, l.Object
		if l.Column != "" {
			action += " (" + l.Column + ")"
		}
		switch l.Kind {
		case "schema", "sequence", "function":
			object = strings.ToUpper(l.Kind) + " " + object
		}
		statements[i] = fmt.Sprintf("GRANT %s ON %s TO %s;", action, object, role)
	}
	return strings.Join(statements, " ")
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// excess is a right that a role has but should not have.
type excess struct{ Action, Object string }

func (x *examination) excessOfAgents(ctx context.Context) ([]excess, error) {
	return read[excess](ctx, x, excessSQL, agentRole, []string{"status SELECT", "tool SELECT", "intent INSERT"}, []string{"enqueue", "arm", "sees_all", "session_tenant"})
}

// These are the rights that a role that only reads may have: patterns of rights on tables and sequences, and functions
// that run with the rights of their owner.
var (
	onlyReads        = []string{"% SELECT"}
	readingFunctions = []string{"sees_all", "session_tenant"}
)

// Writes lists the rights by which a connection's login can change the outbox. It is empty if the login can only read.
func Writes(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, _ := conn.Query(ctx, `SELECT action || ' on ' || object FROM (`+excessSQL+`) AS e (action, object)`,
		nil, onlyReads, readingFunctions) // CollectRows returns the error too
	writes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for rights to write: %w", err)
	}
	return writes, nil
}

// excessSQL lists the effective rights of a role except the allowed ones. They come from grants to the role, to PUBLIC
// and to the roles of which it is a member. Functions that run with the rights of their caller count as no right.
const excessSQL = `
	WITH login AS (SELECT oid FROM pg_roles WHERE rolname = coalesce($1::name, current_user))
	SELECT a.action, 'outbox.' || c.relname::text
	FROM login, pg_class c
	CROSS JOIN pg_catalog.unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS a (action)
	WHERE c.relnamespace = to_regnamespace('outbox'::text)::oid AND c.relkind IN ('r', 'p', 'v')
	  AND NOT (c.relname::text || ' ' || a.action) LIKE ANY ($2::text[])
	  AND (has_table_privilege(login.oid, c.oid, a.action)
	    OR a.action IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES') AND has_any_column_privilege(login.oid, c.oid, a.action))
	UNION ALL
	SELECT 'INSERT (' || c.attname::text || ')', 'outbox.intent'
	FROM login, pg_attribute c JOIN pg_class t ON t.oid = c.attrelid
	WHERE t.relnamespace = to_regnamespace('outbox'::text)::oid AND t.relname = 'intent' AND c.attnum > 0 AND NOT c.attisdropped
	  AND c.attname IN ('id', 'compensates', 'created_at', 'namespace', 'tenant') AND has_column_privilege(login.oid, c.attrelid, c.attnum, 'INSERT'::text)
	UNION ALL
	SELECT a.action, 'SEQUENCE outbox.' || c.relname::text
	FROM login, pg_class c CROSS JOIN pg_catalog.unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) AS a (action)
	WHERE c.relnamespace = to_regnamespace('outbox'::text)::oid AND c.relkind = 'S' AND has_sequence_privilege(login.oid, c.oid, a.action)
	  AND NOT (c.relname::text || ' ' || a.action) LIKE ANY ($2::text[])
	UNION ALL
	SELECT 'EXECUTE', 'FUNCTION outbox.' || p.proname::text
	FROM login, pg_proc p
	WHERE p.pronamespace = to_regnamespace('outbox'::text)::oid AND p.prosecdef AND p.proname <> ALL ($3::text[])
	  AND has_function_privilege(login.oid, p.oid, 'EXECUTE'::text)
	UNION ALL
	SELECT 'CREATE', 'SCHEMA outbox'
	FROM login WHERE has_schema_privilege(login.oid, to_regnamespace('outbox'::text)::oid, 'CREATE'::text)
	ORDER BY 2, 1`

func judgeExcess(role, who string, extra []excess) Finding {
	names, statements := make([]string, len(extra)), make([]string, len(extra))
	for i, e := range extra {
		names[i] = e.Action + " on " + e.Object
		statements[i] = fmt.Sprintf("REVOKE %s ON %s FROM %s, PUBLIC;", e.Action, e.Object, role)
	}
	return problem(strings.Join(statements, " ")+" If it stays so, the role is a member of another one: REVOKE that.",
		"%s may do what %s must not: %s", role, who, abridge(names))
}

func list(all []migrations.Migration) string {
	names := make([]string, len(all))
	for i, m := range all {
		names[i] = strings.TrimSpace(fmt.Sprintf("%s %d %s", m.Set, m.Version, m.Name))
	}
	return abridge(names)
}

// abridge lists the first 5 names, and says how many more there are.
func abridge(names []string) string {
	const few = 5
	if len(names) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	}
	return strings.Join(names, ", ")
}
