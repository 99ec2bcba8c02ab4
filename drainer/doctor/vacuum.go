package doctor

import (
	"context"
	"fmt"
	"time"
)

// tableHealth is what Postgres keeps count of for a hot table.
type tableHealth struct {
	Name       string
	Live, Dead int64
	VacuumedAt *time.Time
	Disabled   bool // autovacuum is, for this table
	Running    bool
}

const tableHealthSQL = `
	SELECT s.relname::text, s.n_live_tup, s.n_dead_tup, greatest(s.last_vacuum, s.last_autovacuum),
		coalesce('autovacuum_enabled=false' = ANY (c.reloptions) OR 'autovacuum_enabled=off' = ANY (c.reloptions), false),
		EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.relid = s.relid)
	FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
	WHERE s.schemaname = 'outbox' AND s.relname IN ('queue', 'claim', 'worker', 'provider', 'intent', 'attempt')
	ORDER BY s.relname`

// hot tables are emptied as fast as they are filled; the others only grow.
var hot = map[string]bool{"queue": true, "claim": true, "worker": true, "provider": true}

func lookAtDeadTuples(ctx context.Context, x *examination) (found []Finding, err error) {
	tables, err := read[tableHealth](ctx, x, tableHealthSQL)
	if err != nil {
		return nil, err
	}
	var most int64
	for _, table := range tables {
		if !hot[table.Name] {
			continue
		}
		most = max(most, table.Dead)
		if table.Dead > x.Limits.DeadTuples {
			found = append(found, table.bloated())
		}
	}
	if len(found) == 0 {
		found = append(found, ok("no hot table has more than %d", most))
	}
	return found, nil
}

func (t tableHealth) bloated() Finding {
	state := "never vacuumed"
	if t.VacuumedAt != nil {
		state = "last vacuumed at " + t.VacuumedAt.UTC().Format(time.RFC3339)
	}
	if t.Running {
		state = "being vacuumed now"
	}
	return warning(fmt.Sprintf("look at pinned xmin and autovacuum first; then VACUUM outbox.%s;", t.Name),
		"outbox.%s has %d dead rows beside %d live ones, %s", t.Name, t.Dead, t.Live, state)
}

func lookAtAutovacuum(ctx context.Context, x *examination) (found []Finding, err error) {
	settings, err := x.settings(ctx, "autovacuum", "track_counts")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"autovacuum", "track_counts"} {
		if s := settings[name]; s.Value == "off" {
			found = append(found, problem(x.cure(s, "on"), "%s is off: dead rows pile up, and claiming slows down", name))
		}
	}
	tables, err := read[tableHealth](ctx, x, tableHealthSQL)
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		if table.Disabled {
			found = append(found, problem(fmt.Sprintf("ALTER TABLE outbox.%s RESET (autovacuum_enabled);", table.Name), "it is off for outbox.%s: dead rows pile up", table.Name))
		}
	}
	if len(found) == 0 {
		found = append(found, ok("on, for every table"))
	}
	return found, nil
}
