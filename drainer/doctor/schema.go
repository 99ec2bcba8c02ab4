package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/agentoutbox/drainer/migrations"
)

// SchemaCheck is the check that finds a problem where the schema is behind.
const SchemaCheck = "schema"

func lookAtSchema(ctx context.Context, x *examination) ([]Finding, error) {
	missing, newer, err := migrations.Compare(ctx, x.pool)
	switch {
	case err != nil:
		return nil, err
	case len(missing) > 0:
		return []Finding{problem("drainer migrate up, as the schema's owner", "migrations are missing: %s", list(missing))}, nil
	case len(newer) > 0:
		return []Finding{warning("upgrade this drainer", "the schema has migrations that this drainer does not know: %s", list(newer))}, nil
	}
	return []Finding{ok("every migration of drainer and of River is applied")}, nil
}

func list(all []migrations.Migration) string {
	names := make([]string, len(all))
	for i, m := range all {
		names[i] = strings.TrimSpace(fmt.Sprintf("%s %d %s", m.Set, m.Version, m.Name))
	}
	return abridge(names)
}

// abridge names the first of many.
func abridge(names []string) string {
	const few = 5
	if len(names) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	}
	return strings.Join(names, ", ")
}
