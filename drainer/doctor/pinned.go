package doctor

import (
	"context"
	"fmt"
	"time"
)

// pin is somebody who keeps dead rows of this database from being removed.
type pin struct {
	Kind        string // session, walsender, prepared or slot
	PID         int32
	Name        string // of the application, the prepared transaction or the slot
	Role        string
	State       string
	HeldSeconds float64 // 0 where nobody knows
	Age         int64   // in transactions
}

const pinsSQL = `
	SELECT CASE WHEN datname IS NULL THEN 'walsender' ELSE 'session' END, pid, coalesce(application_name, ''),
		coalesce(usename, '')::text, coalesce(state, ''),
		coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0)::float8,
		greatest(age(backend_xmin), age(backend_xid))::bigint
	FROM pg_stat_activity
	WHERE pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
	  AND (datname = current_database() OR backend_type = 'walsender') AND application_name <> 'drainer doctor'
	UNION ALL
	SELECT 'prepared', 0, gid, owner::text, '', extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)::bigint
	FROM pg_prepared_xacts WHERE database = current_database()
	UNION ALL
	SELECT 'slot', 0, slot_name::text, '', CASE WHEN active THEN 'active' ELSE 'inactive' END, 0, age(xmin)::bigint
	FROM pg_replication_slots WHERE xmin IS NOT NULL
	ORDER BY 7 DESC, 6 DESC
	LIMIT 20`

// oldSlot is how many transactions a slot may lag, since nobody knows since
// when it has.
const oldSlot = 1_000_000

func lookAtPinnedXmin(ctx context.Context, x *examination) (found []Finding, err error) {
	pins, err := read[pin](ctx, x, pinsSQL)
	if err != nil {
		return nil, err
	}
	for _, p := range pins {
		if p.isOld(x.Limits.Pinned) {
			found = append(found, p.finding(x.Limits.Pinned))
		}
	}
	sees, err := x.seesOthers(ctx)
	switch {
	case err != nil:
		return nil, err
	case !sees:
		found = append(found, notChecked(fmt.Sprintf("GRANT pg_read_all_stats TO %s;", quote(x.Database.ConnConfig.User)),
			"sessions of other roles: this one may not see what they do"))
	case len(found) == 0:
		found = append(found, ok("nobody has held a snapshot for %s", short(x.Limits.Pinned)))
	}
	return found, nil
}

func (x *examination) seesOthers(ctx context.Context) (sees bool, err error) {
	err = x.pool.QueryRow(ctx, "SELECT pg_has_role('pg_read_all_stats', 'USAGE')").Scan(&sees)
	return sees, err
}

func (p pin) isOld(limit time.Duration) bool {
	if p.Kind == "slot" {
		return p.Age > oldSlot
	}
	return p.held() > limit
}

func (p pin) held() time.Duration { return time.Duration(p.HeldSeconds * float64(time.Second)) }

func (p pin) finding(limit time.Duration) Finding {
	var seen, cure string
	switch p.Kind {
	case "slot":
		seen = fmt.Sprintf("replication slot %s (%s)", p.Name, p.State)
		cure = fmt.Sprintf("bring its standby back, or SELECT pg_drop_replication_slot('%s');", p.Name)
	case "prepared":
		seen = fmt.Sprintf("prepared transaction %s of %s, for %s,", p.Name, p.Role, short(p.held()))
		cure = fmt.Sprintf("COMMIT PREPARED or ROLLBACK PREPARED '%s', as whoever began it would", p.Name)
	case "walsender":
		seen = fmt.Sprintf("standby %q (pid %d), for %s,", p.Name, p.PID, short(p.held()))
		cure = "end the long query there, or set hot_standby_feedback = off on it"
	default:
		seen = fmt.Sprintf("pid %d, application %q of %s, %s for %s,", p.PID, p.Name, p.Role, p.State, short(p.held()))
		cure = fmt.Sprintf("end it: SELECT pg_terminate_backend(%d); and set idle_in_transaction_session_timeout for its role", p.PID)
	}
	seen += fmt.Sprintf(" keeps dead rows from being removed (%d transactions back): claiming slows down the longer it lasts", p.Age)
	if p.held() > 10*limit || p.Kind == "slot" {
		return problem(cure, "%s", seen)
	}
	return warning(cure, "%s", seen)
}
