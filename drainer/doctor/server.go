package doctor

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	oldestServer = 14
	newestServer = 18
	farAway      = 20 * time.Millisecond
	roundTrips   = 5
)

// DaemonConnections is how many connections one `drainer run` holds at most: seven for its store, one that listens, one
// for the census, two for sagas and six for jobs. River has no connection that listens.
const DaemonConnections = 17

var serverChecks = []check{
	{name: "tls", look: lookAtTLS},

	{name: "server", look: each("SELECT current_setting('server_version_num')::int",
		func(_ *examination, seen struct{ Version int }) []Finding {
			major, minor := seen.Version/10_000, seen.Version%10_000
			switch {
			case major < oldestServer:
				return []Finding{problem("upgrade it", "PostgreSQL %d.%d; drainer needs %d or later", major, minor, oldestServer)}
			case major > newestServer:
				return []Finding{warning("see whether a later drainer knows it", "PostgreSQL %d.%d is later than what this drainer was tested with, %d", major, minor, newestServer)}
			}
			return []Finding{ok("PostgreSQL %d.%d", major, minor)}
		})},

	{name: "encoding", look: each("SELECT current_setting('server_encoding'::text)",
		func(_ *examination, seen struct{ Encoding string }) []Finding {
			if seen.Encoding != "UTF8" {
				return []Finding{problem("move the outbox to a database with ENCODING 'UTF8'", "the database's encoding is %s: what it cannot hold never settles", seen.Encoding)}
			}
			return []Finding{ok("UTF8")}
		})},

	{name: "round trip", look: byClock(func(r reading) Finding {
		if r.took > farAway {
			return warning("run drainer nearer to the database: every batch waits for it", "a statement takes %s there and back", short(r.took))
		}
		return ok("a statement takes %s there and back", short(r.took))
	})},

	// Due times and leases use the database's clock, so a wrong clock of this machine does not matter to
	// them. It does matter to signatures, certificates and logs.
	{name: "clock", look: byClock(judgeSkew)},

	{name: "writable", well: "a primary that takes writes", look: each(`
		SELECT name, setting, source, pg_is_in_recovery() FROM pg_settings WHERE name = 'default_transaction_read_only'`,
		func(x *examination, readOnly struct {
			setting
			IsStandby bool
		},
		) []Finding {
			switch {
			case readOnly.IsStandby:
				return []Finding{problem("point the database URL at the primary, and add target_session_attrs=read-write to it", "this is a standby, which only reads")}
			case readOnly.Value == "on":
				// The statement that changes the default needs a transaction that may write.
				cure := "SET default_transaction_read_only = off; " + x.cure(readOnly.setting, "off")
				return []Finding{problem(cure, "transactions are read-only: default_transaction_read_only is on")}
			}
			return nil
		})},

	// An intent is sent only after its claim is on disk. If the server loses a claim, the intent is sent again.
	{name: "durability", look: bySettings(func(x *examination, all map[string]setting) (found []Finding) {
		if s := all["fsync"]; s.Value == "off" {
			found = append(found, problem(x.cure(s, "on"), "fsync is off: a crash of the machine may lose or damage everything"))
		}
		if s := all["full_page_writes"]; s.Value == "off" {
			found = append(found, warning(x.cure(s, "on"), "full_page_writes is off: a crash may damage pages, unless the file system writes them whole"))
		}
		switch s := all["synchronous_commit"]; {
		case s.Value == "off":
			found = append(found, problem(x.cure(s, "on"), "synchronous_commit is off: a crash forgets claims that were sent, and they are sent again"))
		case s.Value == "local" && all["synchronous_standby_names"].Value != "":
			found = append(found, warning(x.cure(s, "on"), "synchronous_commit is local: a failover forgets claims that were sent, and they are sent again"))
		case len(found) == 0:
			found = append(found, ok("fsync and full_page_writes are on, synchronous_commit is %s", s.Value))
		}
		return found
	})},

	{name: "session limits", well: "no timeout ends what the daemon does", look: bySettings(func(x *examination, all map[string]setting) (found []Finding) {
		for _, limit := range sessionLimits {
			milliseconds, err := strconv.ParseInt(all[limit.name].Value, 10, 64)
			if err != nil || milliseconds == 0 { // the server does not know the limit, or it is off
				continue
			}
			if value := time.Duration(milliseconds) * time.Millisecond; limit.least == 0 || value < limit.least {
				found = append(found, warning(x.cure(all[limit.name], "0"), "%s is %s: %s", limit.name, value, limit.hurts))
			}
		}
		return found
	})},

	// Most roles cannot see the activity of other sessions, but they can count them.
	{name: "room", look: each(`
		SELECT
			current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
				- coalesce(current_setting('reserved_connections'::text, true)::bigint, 0),
			(SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database WHERE datname IS NOT NULL),
			r.rolconnlimit::bigint, (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user),
			d.datconnlimit::bigint, (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())
		FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()`,
		func(_ *examination, seen struct {
			Limit, InUse                 int64 // the server's limit for roles that are not superusers
			RoleLimit, RoleInUse         int64 // a limit of -1 means none
			DatabaseLimit, DatabaseInUse int64
		},
		) (found []Finding) {
			for _, limit := range []struct {
				of, cure    string
				most, inUse int64
			}{
				{"max_connections", "raise max_connections, lower what others hold, or put a pooler between", seen.Limit, seen.InUse},
				{"the role's CONNECTION LIMIT", "ALTER ROLE … CONNECTION LIMIT", seen.RoleLimit, seen.RoleInUse},
				{"the database's CONNECTION LIMIT", "ALTER DATABASE … CONNECTION LIMIT", seen.DatabaseLimit, seen.DatabaseInUse},
			} {
				if limit.most >= 0 && limit.most-limit.inUse < DaemonConnections {
					found = append(found, warning(limit.cure, "%s leaves room for %d more connections; one drainer holds %d", limit.of, max(0, limit.most-limit.inUse), DaemonConnections))
				}
			}
			if len(found) == 0 {
				found = append(found, ok("%d of %d connections are in use; one drainer holds %d", seen.InUse, seen.Limit, DaemonConnections))
			}
			return found
		})},

	{name: "pooler", look: lookAtPooler},
	{name: "notifications", look: lookAtNotifications},
}

var tableChecks = []check{
	{name: "pinned xmin", look: lookAtPinnedXmin},

	{name: "dead tuples", look: func(ctx context.Context, x *examination) (found []Finding, err error) {
		tables, err := read[tableHealth](ctx, x, tableHealthSQL)
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
		if len(found) == 0 && err == nil {
			found = append(found, ok("no hot table has more than %d", most))
		}
		return found, err
	}},

	{name: "autovacuum", well: "on, for every table", look: func(ctx context.Context, x *examination) (found []Finding, err error) {
		settings, err := x.settings(ctx)
		if err != nil {
			return nil, err
		}
		for _, name := range []string{"autovacuum", "track_counts"} {
			if s := settings[name]; s.Value == "off" {
				found = append(found, problem(x.cure(s, "on"), "%s is off: dead rows pile up, and claiming slows down", name))
			}
		}
		tables, err := read[tableHealth](ctx, x, tableHealthSQL)
		for _, table := range tables {
			if table.Disabled {
				found = append(found, problem(fmt.Sprintf("ALTER TABLE outbox.%s RESET (autovacuum_enabled);", table.Name), "it is off for outbox.%s: dead rows pile up", table.Name))
			}
		}
		return found, err
	}},
}

// reading is one reading of the server's clock, with the times of the question and of the answer by this
// machine's clock.
type reading struct {
	server          time.Time
	asked, answered time.Time
	took            time.Duration
}

func byClock(judge func(reading) Finding) look {
	return func(ctx context.Context, x *examination) ([]Finding, error) {
		r, err := x.readClock(ctx)
		if err != nil {
			return nil, err
		}
		return []Finding{judge(r)}, nil
	}
}

// readClock returns the quickest of several readings, since it has the smallest error.
func (x *examination) readClock(ctx context.Context) (best reading, err error) {
	pooled, err := x.pool.Acquire(ctx)
	if err != nil {
		return best, err
	}
	defer pooled.Release()
	for i := range roundTrips {
		start := time.Now()
		r := reading{asked: x.Now()}
		if err := pooled.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&r.server); err != nil {
			return best, err
		}
		r.answered, r.took = x.Now(), time.Since(start)
		if i == 0 || r.took < best.took {
			best = r
		}
	}
	return best, nil
}

// short rounds a duration for a person.
func short(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(10 * time.Microsecond)
}

// setting is a parameter's value in this session, with the place where it was set.
type setting struct {
	Name   string
	Value  string
	Source string
}

func (x *examination) settings(ctx context.Context) (map[string]setting, error) {
	found, err := read[setting](ctx, x, `SELECT name, coalesce(setting, ''), source FROM pg_settings`)
	all := make(map[string]setting, len(found))
	for _, s := range found {
		all[s.Name] = s
	}
	return all, err
}

func bySettings(judge func(*examination, map[string]setting) []Finding) look {
	return func(ctx context.Context, x *examination) ([]Finding, error) {
		all, err := x.settings(ctx)
		if err != nil {
			return nil, err
		}
		return judge(x, all), nil
	}
}

// cure returns the statement or the advice that changes a setting at the place where it was set.
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

// sessionLimit is a timeout of the server that could end work of the daemon. The daemon sets
// idle_in_transaction_session_timeout itself.
type sessionLimit struct {
	name  string
	least time.Duration // the lowest harmless value; 0: each value does harm
	hurts string
}

var sessionLimits = []sessionLimit{
	{"statement_timeout", 10 * time.Second, "pruning and recovery may take longer, and never end then"},
	{"transaction_timeout", 30 * time.Second, "a saga's step may take longer, and never ends then"},
	{"lock_timeout", time.Second, "settling waits for operators' short locks"},
	{"idle_session_timeout", 0, "it cuts the connection that waits for notifications, again and again"},
}

const (
	noticeableSkew = time.Second
	harmfulSkew    = 30 * time.Second
)

func judgeSkew(r reading) Finding {
	const cure = "start a time service (chrony, systemd-timesyncd) on the machine whose clock is wrong; chronyc tracking shows which"
	err := r.answered.Sub(r.asked) / 2
	ahead := r.asked.Add(err).Sub(r.server)
	skew, direction := ahead.Abs(), "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	switch certain := skew - err; {
	case certain > harmfulSkew:
		return problem(cure, "this machine is %s %s the database (± %s): webhooks' signatures and certificates are judged wrongly", short(skew), direction, short(err))
	case certain > noticeableSkew:
		return warning(cure, "this machine is %s %s the database (± %s)", short(skew), direction, short(err))
	}
	return ok("this machine and the database agree within %s", short(skew+err))
}

// tableHealth holds Postgres's statistics of a table.
type tableHealth struct {
	Name       string
	Live, Dead int64
	VacuumedAt *time.Time
	Disabled   bool // autovacuum is off for this table
	Running    bool // a vacuum of the table is running
}

const tableHealthSQL = `
	SELECT s.relname::text, s.n_live_tup, s.n_dead_tup, greatest(s.last_vacuum, s.last_autovacuum),
		coalesce('autovacuum_enabled=false' = ANY (c.reloptions) OR 'autovacuum_enabled=off' = ANY (c.reloptions), false),
		EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.relid = s.relid)
	FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
	WHERE s.schemaname = 'outbox' AND s.relname IN ('queue', 'claim', 'worker', 'provider', 'intent', 'attempt')
	ORDER BY s.relname`

// hot has the tables that are emptied as fast as they are filled. The others only grow.
var hot = map[string]bool{"queue": true, "claim": true, "worker": true, "provider": true}

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

// pin is a session, transaction or slot that keeps dead rows of this database
// from being removed.
type pin struct {
	Kind        string // session, walsender, prepared or slot
	PID         int32
	Name        string // name of the application, the prepared transaction or the slot
	Role        string
	State       string
	HeldSeconds float64 // 0 if unknown
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
	  AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum) -- whose snapshot keeps no dead rows
	UNION ALL
	SELECT 'prepared', 0, gid, owner::text, '', extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)::bigint
	FROM pg_prepared_xacts WHERE database = current_database()
	UNION ALL
	SELECT 'slot', 0, slot_name::text, '', CASE WHEN active THEN 'active' ELSE 'inactive' END, 0, age(xmin)::bigint
	FROM pg_replication_slots WHERE xmin IS NOT NULL
	ORDER BY 7 DESC, 6 DESC
	LIMIT 20`

// oldSlot is how many transactions a slot may lag. Postgres does not show for how long it
// has lagged.
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
	var sees bool
	err = x.pool.QueryRow(ctx, "SELECT pg_has_role('pg_read_all_stats'::name, 'USAGE'::text)").Scan(&sees)
	switch {
	case err != nil:
		return nil, err
	case !sees:
		found = append(found, notChecked(fmt.Sprintf("GRANT pg_read_all_stats TO %s;", quote(x.Database.ConnConfig.User)),
			"sessions of other roles: this one may not see what they do"))
	case len(found) == 0:
		found = append(found, ok("no session has held a snapshot for %s", short(x.Limits.Pinned)))
	}
	return found, nil
}

func (p pin) isOld(limit time.Duration) bool {
	if p.Kind == "slot" {
		return p.Age > oldSlot
	}
	return p.held() > limit
}

func (p pin) held() time.Duration { return seconds(p.HeldSeconds) }

func (p pin) finding(limit time.Duration) Finding {
	var seen, cure string
	switch p.Kind {
	case "slot":
		seen = fmt.Sprintf("replication slot %s (%s)", p.Name, p.State)
		cure = fmt.Sprintf("bring its standby back, or SELECT pg_drop_replication_slot('%s');", p.Name)
	case "prepared":
		seen = fmt.Sprintf("prepared transaction %s of %s, for %s,", p.Name, p.Role, short(p.held()))
		cure = fmt.Sprintf("COMMIT PREPARED or ROLLBACK PREPARED '%s', as the program that began it would", p.Name)
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
