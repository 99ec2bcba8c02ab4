package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// setting is a parameter as this session has it, and where that was said.
type setting struct {
	Name   string
	Value  string
	Source string
}

func (x *examination) settings(ctx context.Context, names ...string) (map[string]setting, error) {
	found, err := read[setting](ctx, x, `SELECT name, setting, source FROM pg_settings WHERE name = ANY ($1::text[])`, names)
	if err != nil {
		return nil, err
	}
	all := make(map[string]setting, len(found))
	for _, s := range found {
		all[s.Name] = s
	}
	return all, nil
}

// cure names the place that the value comes from.
func (x *examination) cure(s setting, value string) string {
	user, database := pgx.Identifier{x.Database.ConnConfig.User}.Sanitize(), pgx.Identifier{x.Database.ConnConfig.Database}.Sanitize()
	switch s.Source {
	case "user":
		return fmt.Sprintf("ALTER ROLE %s RESET %s;", user, s.Name)
	case "database":
		return fmt.Sprintf("ALTER DATABASE %s RESET %s;", database, s.Name)
	case "database user":
		return fmt.Sprintf("ALTER ROLE %s IN DATABASE %s RESET %s;", user, database, s.Name)
	case "client", "session":
		return fmt.Sprintf("take %s out of the database URL, PGOPTIONS or the pooler's settings", s.Name)
	case "command line":
		return fmt.Sprintf("start the server with %s = %s", s.Name, value)
	}
	return fmt.Sprintf("ALTER SYSTEM SET %s = %s; SELECT pg_reload_conf();", s.Name, value)
}

func lookWhetherWritable(ctx context.Context, x *examination) ([]Finding, error) {
	var isStandby bool
	if err := x.pool.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&isStandby); err != nil {
		return nil, err
	}
	if isStandby {
		return []Finding{problem("point the database URL at the primary, and add target_session_attrs=read-write to it", "this is a standby, which only reads")}, nil
	}
	settings, err := x.settings(ctx, "default_transaction_read_only")
	if err != nil {
		return nil, err
	}
	if readOnly := settings["default_transaction_read_only"]; readOnly.Value == "on" {
		// What changes the default is itself bound by it.
		cure := "SET default_transaction_read_only = off; " + x.cure(readOnly, "off")
		return []Finding{problem(cure, "transactions are read-only: default_transaction_read_only is on")}, nil
	}
	return []Finding{ok("a primary that takes writes")}, nil
}
