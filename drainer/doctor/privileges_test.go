package doctor

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// granted is what the migrations give a role by itself.
const granted = `
	SELECT p.action || ' on ' || o.name FROM (
		SELECT 'outbox' AS name, nspacl AS acl FROM pg_namespace WHERE nspname = 'outbox'
		UNION ALL
		SELECT 'outbox.' || relname, relacl FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relname NOT LIKE 'river\_%'
		UNION ALL
		SELECT 'outbox.' || proname, proacl FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname NOT LIKE 'river\_%'
	) o CROSS JOIN LATERAL (SELECT privilege_type AS action FROM aclexplode(o.acl) WHERE grantee = $1::text::regrole) p
	UNION ALL
	SELECT p.privilege_type || ' (' || a.attname || ') on outbox.' || c.relname
	FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid CROSS JOIN LATERAL aclexplode(a.attacl) p
	WHERE c.relnamespace = 'outbox'::regnamespace AND p.grantee = $1::text::regrole
	ORDER BY 1`

func TestWhatARoleNeedsIsWhatTheMigrationsGrant(t *testing.T) {
	t.Parallel()
	conn := healthy(t).connect()
	for role, needs := range map[string][]privilege{drainerRole: daemonNeeds, agentRole: agentsNeed} {
		rows, _ := conn.Query(t.Context(), granted, role)
		has, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		var wants []string
		for _, need := range needs {
			for _, action := range need.actions {
				wants = append(wants, lack{Object: need.object, Column: need.column, Action: action}.String())
			}
		}
		slices.Sort(has)
		slices.Sort(wants)
		for _, name := range wants {
			if !slices.Contains(has, name) {
				t.Errorf("%s is said to need %s, which no migration grants", role, name)
			}
		}
		for _, name := range has {
			if !slices.Contains(wants, name) {
				t.Errorf("migrations grant %s to %s, which the doctor does not look at", name, role)
			}
		}
	}
}
