package doctor

import (
	"context"
	"fmt"
)

type ownership struct {
	Owner     string   // of the schema
	Strays    []string // what in it belongs to somebody else
	IsOwner   bool     // the daemon's role is, or may become, the owner
	Superuser bool
	Role      string
}

const ownershipSQL = `
	SELECT owner.rolname,
		ARRAY(
			SELECT c.relname::text FROM pg_class c
			WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v', 'S') AND c.relowner <> n.nspowner
			UNION ALL
			SELECT p.proname || '()' FROM pg_proc p WHERE p.pronamespace = n.oid AND p.proowner <> n.nspowner
			ORDER BY 1),
		pg_has_role(n.nspowner, 'MEMBER'), me.rolsuper, me.rolname
	FROM pg_namespace n JOIN pg_roles owner ON owner.oid = n.nspowner, pg_roles me
	WHERE n.nspname = 'outbox' AND me.rolname = current_user`

func lookAtOwnership(ctx context.Context, x *examination) (found []Finding, err error) {
	all, err := read[ownership](ctx, x, ownershipSQL)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return []Finding{notChecked("see schema", "there is no schema outbox")}, nil
	}
	seen := all[0]
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
	if len(found) == 0 {
		found = append(found, ok("the schema and all in it belong to %s; %s only works with it", seen.Owner, seen.Role))
	}
	return found, nil
}
