package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

const (
	drainerRole = "outbox_drainer"
	agentRole   = "outbox_agent"
)

// lack is one privilege that a role does not have.
type lack struct {
	Kind, Object, Column, Action string
	RoleHasIt                    bool // the group role has it, so membership is what is missing
	IsGone                       bool // there is no such object
}

func (l lack) String() string {
	if l.Column != "" {
		return fmt.Sprintf("%s (%s) on %s", l.Action, l.Column, l.Object)
	}
	return l.Action + " on " + l.Object
}

// lacksSQL asks for each privilege whether a role has it, and whether another
// one has.
const lacksSQL = `
	SELECT p.kind, p.object, p.col, p.action, coalesce(holds.other, false), id.oid IS NULL
	FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS p (kind, object, col, action, nth)
	CROSS JOIN LATERAL (SELECT
		CASE p.kind
		WHEN 'schema' THEN to_regnamespace(p.object)::oid
		WHEN 'function' THEN (SELECT oid FROM pg_proc WHERE pronamespace = to_regnamespace('outbox') AND proname = split_part(p.object, '.', 2) LIMIT 1)
		ELSE (SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace('outbox') AND relname = split_part(p.object, '.', 2))
		END AS oid, (SELECT oid FROM pg_roles WHERE rolname = $5) AS me, (SELECT oid FROM pg_roles WHERE rolname = $6) AS other) id
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
	SELECT CASE relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, 'outbox.' || relname
	FROM pg_class WHERE relnamespace = to_regnamespace('outbox') AND relkind IN ('r', 'S') AND relname LIKE 'river\_%'
	UNION ALL
	SELECT 'function', 'outbox.' || proname
	FROM pg_proc WHERE pronamespace = to_regnamespace('outbox') AND proname LIKE 'river\_%'
	ORDER BY 1, 2`

func lookAtDaemonGrants(ctx context.Context, x *examination) ([]Finding, error) {
	var role string
	if err := x.pool.QueryRow(ctx, "SELECT current_user::text").Scan(&role); err != nil {
		return nil, err
	}
	river, err := x.riverNeeds(ctx)
	if err != nil {
		return nil, err
	}
	lacks, err := x.lacks(ctx, role, drainerRole, append(slices.Clone(daemonNeeds), river...))
	if err != nil {
		return nil, err
	}
	if gone, found := theGone(lacks); found {
		return []Finding{gone}, nil
	}
	if len(lacks) == 0 {
		return []Finding{ok("%s may do what the daemon does", role)}, nil
	}
	if !slices.ContainsFunc(lacks, func(l lack) bool { return !l.RoleHasIt }) {
		return []Finding{problem(membership(role), "%s lacks what the role %s has: %s", role, drainerRole, describe(lacks))}, nil
	}
	return []Finding{problem(grants(lacks, drainerRole), "%s lacks %s", role, describe(lacks))}, nil
}

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

// theGone says that what is not there cannot be granted.
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

// membership is what a login lacks that was never made a member, or does not
// inherit.
func membership(role string) string {
	return fmt.Sprintf("GRANT %s TO %s; if it is a member already: ALTER ROLE %[2]s INHERIT; and, from Postgres 16, GRANT %[1]s TO %[2]s WITH INHERIT TRUE;",
		drainerRole, quote(role))
}

// grants are the statements that give a role what is missing.
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
