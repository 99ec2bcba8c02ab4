package doctor

import (
	"context"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/throwaway"
)

func TestAHealthySetUpHasNothingToCure(t *testing.T) {
	t.Parallel()
	healthy(t).isWell()
}

// looks inserts the recent jobs of a set-up that executes its jobs.
const looks = `INSERT INTO outbox.river_job (kind, args, max_attempts, state, attempted_at, finalized_at)
	VALUES ('page_look', '{}', 1, 'completed', now(), now()), ('saga_look', '{}', 1, 'completed', now(), now())`

// Each of the faults breaks one thing in a healthy set-up.
var faults = map[string]struct {
	breakIt func(*world)
	verdict Verdict
	check   string
	seen    string
	cure    string
}{
	"a grant is missing": {
		by("REVOKE DELETE ON outbox.queue FROM outbox_drainer"),
		Problem, "daemon's grants", "lacks DELETE on outbox.queue", "GRANT DELETE ON outbox.queue TO outbox_drainer;",
	},
	"a grant on a column is missing": {
		by("REVOKE INSERT ON outbox.intent FROM outbox_drainer; GRANT INSERT (agent_run_id, step_id, tool_name, business_scope, headers, not_before, compensates) ON outbox.intent TO outbox_drainer"),
		Problem, "daemon's grants", "INSERT (payload) on outbox.intent", "GRANT INSERT (payload) ON outbox.intent TO outbox_drainer;",
	},
	"a grant on one of River's tables is missing": {
		by("REVOKE UPDATE ON outbox.river_job FROM outbox_drainer"),
		Problem, "daemon's grants", "UPDATE on outbox.river_job", "GRANT UPDATE ON outbox.river_job TO outbox_drainer;",
	},
	"the daemon's role inherits nothing": {
		by("ALTER ROLE {role} NOINHERIT"),
		Problem, "daemon's grants", "lacks what the role outbox_drainer has", "GRANT outbox_drainer TO ",
	},
	"operators may not decide": {
		by("REVOKE EXECUTE ON FUNCTION outbox.operate_run FROM outbox_operator"),
		Problem, "operators' grants", "lacks EXECUTE on outbox.operate_run", "GRANT EXECUTE ON FUNCTION outbox.operate_run TO outbox_operator;",
	},
	"the daemon can write as an operator": {
		by("GRANT outbox_operator TO {role}"),
		Warning, "operators' grants", "the daemon can write history as an operator", "REVOKE outbox_operator FROM ",
	},
	"agents may not enqueue": {
		by("REVOKE EXECUTE ON FUNCTION outbox.enqueue FROM outbox_agent"),
		Problem, "agents' grants", "lacks EXECUTE on outbox.enqueue", "GRANT EXECUTE ON FUNCTION outbox.enqueue TO outbox_agent;",
	},
	"agents may delete what waits": {
		by("GRANT DELETE ON outbox.queue TO outbox_agent"),
		Problem, "agents' grants", "DELETE on outbox.queue", "REVOKE DELETE ON outbox.queue FROM outbox_agent, PUBLIC;",
	},
	"all roles may prune": {
		by("GRANT EXECUTE ON FUNCTION outbox.prune TO PUBLIC"),
		Problem, "agents' grants", "EXECUTE on FUNCTION outbox.prune", "REVOKE EXECUTE ON FUNCTION outbox.prune FROM outbox_agent, PUBLIC;",
	},
	"agents may set what an intent undoes": {
		by("GRANT INSERT (compensates) ON outbox.intent TO outbox_agent"),
		Problem, "agents' grants", "INSERT (compensates) on outbox.intent", "REVOKE INSERT (compensates) ON outbox.intent",
	},
	"auditors may not read": {
		by("REVOKE SELECT ON outbox.minute FROM outbox_auditor"),
		Problem, "auditors' grants", "lacks SELECT on outbox.minute", "GRANT SELECT ON outbox.minute TO outbox_auditor;",
	},
	"auditors may pause a provider": {
		by("GRANT EXECUTE ON FUNCTION outbox.operate_provider TO outbox_auditor"),
		Problem, "auditors' grants", "EXECUTE on FUNCTION outbox.operate_provider", "REVOKE EXECUTE ON FUNCTION outbox.operate_provider FROM outbox_auditor, PUBLIC;",
	},
	"auditors may guess what fingerprints hash": {
		by("GRANT SELECT (key) ON outbox.fingerprint_key TO outbox_auditor"),
		Problem, "auditors' grants", "SELECT on outbox.fingerprint_key", "REVOKE SELECT ON outbox.fingerprint_key FROM outbox_auditor, PUBLIC;",
	},
	"a migration is missing": {
		by("DELETE FROM outbox.goose_db_version WHERE version_id = 7"),
		Problem, "schema", "outbox 7 operations", "drainer migrate up",
	},
	"a migration is from the future": {
		by("INSERT INTO outbox.goose_db_version (version_id, is_applied) VALUES (900, true)"),
		Warning, "schema", "outbox 900", "upgrade this drainer",
	},
	"a build of the index of references failed": {
		by("CREATE INDEX attempt_provider_ref ON outbox.attempt (provider_ref, intent_id); UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox.attempt_provider_ref'::regclass"),
		Warning, "schema", "not whole", "drainer migrate references on",
	},
	"a table belongs to another role": {
		by("GRANT CREATE ON SCHEMA outbox TO outbox_drainer; ALTER TABLE outbox.watermark OWNER TO outbox_drainer; REVOKE CREATE ON SCHEMA outbox FROM outbox_drainer"),
		Warning, "ownership", "watermark", "OWNER TO",
	},
	"the schema's owner is a superuser": {
		by("UPDATE pg_namespace SET nspowner = current_user::regrole WHERE nspname = 'outbox';UPDATE pg_class SET relowner = current_user::regrole WHERE relnamespace = 'outbox'::regnamespace;UPDATE pg_proc SET proowner = current_user::regrole WHERE pronamespace = 'outbox'::regnamespace"),
		Warning, "ownership", "is a superuser", "docs/security.md",
	},
	"the daemon is a superuser": {
		by("ALTER ROLE {role} SUPERUSER"),
		Warning, "ownership", "nothing keeps the daemon from changing what agents committed", "let the daemon log in as a role of its own",
	},
	"an auditor looks at schemas of others": {
		by("CREATE ROLE {role}_auditor LOGIN IN ROLE outbox_auditor; GRANT CONNECT ON DATABASE {database} TO {role}_auditor; ALTER ROLE {role}_auditor SET search_path = pg_catalog, public"),
		Warning, "search path", "_auditor has no search_path of its own", "SET search_path = pg_catalog, pg_temp;",
	},
	"the daemon looks at schemas of others": {
		by("ALTER ROLE {role} RESET search_path"),
		Warning, "search path", "has no search_path of its own", "SET search_path = pg_catalog, pg_temp;",
	},
	"the daemon's path leads through public": {
		by("ALTER ROLE {role} SET search_path = pg_catalog, public"),
		Warning, "search path", "has no search_path of its own", "SET search_path = pg_catalog, pg_temp;",
	},
	"all logins may create temporary objects": {
		by("GRANT TEMPORARY ON DATABASE {database} TO PUBLIC"),
		Warning, "search path", "temporary objects", "REVOKE TEMPORARY ON DATABASE",
	},
	"agents may create in public": {
		by("GRANT CREATE ON SCHEMA public TO outbox_agent"),
		Warning, "search path", "in schema public", "REVOKE CREATE ON SCHEMA",
	},
	"the role only reads": {
		by("ALTER ROLE {role} SET default_transaction_read_only = on"),
		Problem, "writable", "default_transaction_read_only is on", "RESET default_transaction_read_only;",
	},
	"the database only reads": {
		by("ALTER DATABASE {database} SET default_transaction_read_only = on"),
		Problem, "writable", "default_transaction_read_only is on", "ALTER DATABASE ",
	},
	"commits of the role may be forgotten": {
		by("ALTER ROLE {role} SET synchronous_commit = off"),
		Problem, "durability", "synchronous_commit is off", "RESET synchronous_commit;",
	},
	"commits of the URL may be forgotten": {
		func(w *world) { w.Database = w.config(w.url("synchronous_commit=off")) },
		Problem, "durability", "synchronous_commit is off", "take synchronous_commit out of the database URL",
	},
	"statements are cut off": {
		by("ALTER ROLE {role} SET statement_timeout = '2s'"),
		Warning, "session limits", "statement_timeout is 2s", "RESET statement_timeout;",
	},
	"there is no room for another daemon": {
		by("ALTER ROLE {role} CONNECTION LIMIT 12"),
		Warning, "room", "CONNECTION LIMIT leaves room for", "ALTER ROLE",
	},
	"autovacuum is off for a hot table": {
		by("ALTER TABLE outbox.queue SET (autovacuum_enabled = false)"),
		Problem, "autovacuum", "off for outbox.queue", "RESET (autovacuum_enabled);",
	},
	"rows wait for a provider that is not configured": {
		by("SELECT outbox.enqueue('r', 's', 'nobody/x', 'b', '{}')"),
		Problem, "unconfigured", `1 row waits for the provider "nobody"`, `add "nobody" under providers`,
	},
	"rows want a tool that the provider does not have": {
		by("SELECT outbox.enqueue('r', 's', 'p/y', 'b', '{}')"),
		Problem, "unconfigured", `the tool "p/y"`, `add "y" under providers.p.tools`,
	},
	"a daemon has parked what its provider does not have": {
		by("SELECT outbox.enqueue('r', 's', 'p/y', 'b', '{}'); UPDATE outbox.queue SET provider = 'p/y'"),
		Problem, "unconfigured", `1 row wants the tool "p/y", which no living worker knows`, `add "y" under providers.p.tools`,
	},
	"replicas have different configurations": {
		by(`UPDATE outbox.worker SET providers = '{p}', fingerprints = '{aaa}', started_at = now() - interval '11 minutes';
			INSERT INTO outbox.worker (worker_id, providers, fingerprints, started_at) VALUES (gen_random_uuid(), '{p}', '{bbb}', now() - interval '11 minutes');
			` + looks),
		Warning, "configurations", `workers have had 2 configurations of "p"`, "reload or restart those",
	},
	"replicas differ in a setting outside of their providers": {
		by(`UPDATE outbox.worker SET providers = '{p}', fingerprints = '{aaa}', configuration = 'ccc', started_at = now() - interval '11 minutes';
			INSERT INTO outbox.worker (worker_id, providers, fingerprints, configuration, started_at) VALUES (gen_random_uuid(), '{p}', '{aaa}', 'ddd', now() - interval '11 minutes'),
				(gen_random_uuid(), '{q}', '{aaa}', 'eee', now() - interval '11 minutes');
			` + looks),
		Warning, "configurations", `workers of the same providers have had 2 configurations`, "reload or restart those",
	},
	"replicas that differ in a setting list their providers in another order": {
		by(`UPDATE outbox.worker SET providers = '{p,q}', fingerprints = '{aaa,bbb}', configuration = 'ccc', started_at = now() - interval '11 minutes';
			INSERT INTO outbox.worker (worker_id, providers, fingerprints, configuration, started_at) VALUES (gen_random_uuid(), '{q,p}', '{bbb,aaa}', 'ddd', now() - interval '11 minutes');
			` + looks),
		Warning, "configurations", `workers of the same providers have had 2 configurations`, "reload or restart those",
	},
	"no pass over sagas ends well": {
		by("UPDATE outbox.worker SET started_at = now() - interval '2 hours';" + looks + "; DELETE FROM outbox.river_job WHERE kind = 'saga_look'"),
		Warning, "jobs", "no pass over sagas has ended well for 2h", "restart one after the other",
	},
	"no process drains": {
		by("DELETE FROM outbox.worker; SELECT outbox.enqueue('r', 's', 'p/x', 'b', '{}')"),
		Problem, "workers", "no process drains, and intents are due", "start drainer run",
	},
	"a dead worker's rows are not recovered": {
		by(claimBy("gen_random_uuid()", "1 hour")),
		Problem, "claims", "claimed by workers that are gone", "start a drainer",
	},
	"a request hangs": {
		by(claimBy("(SELECT worker_id FROM outbox.worker)", "1 hour")),
		Warning, "claims", "in progress for 1h", "restart the worker",
	},
	"a provider is paused": {
		by("INSERT INTO outbox.provider (name, paused) VALUES ('p', true)"),
		Warning, "providers' gates", `"p" is paused`, "drainer providers resume p",
	},
	"a circuit breaker is open": {
		by("INSERT INTO outbox.provider (name, state, open_until) VALUES ('p', 'open', now() + interval '1 minute')"),
		Warning, "providers' gates", `the circuit breaker of "p" is open`, "closes by itself",
	},
	"an operation's circuit breaker is open": {
		by("INSERT INTO outbox.tool (name, state, reason, open_until) VALUES ('p/charge', 'open', 'failure_rate', now() + interval '1 minute')"),
		Warning, "providers' gates", `the circuit breaker of "p/charge" is open: failure_rate`, "closes by itself",
	},
	"an incident is not acknowledged": {
		by("INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('outcome_unknown', 1, 'r')"),
		Warning, "incidents", "1 of kind outcome_unknown", "drainer incidents ack",
	},
	"a saga is stuck": {
		by("INSERT INTO outbox.saga (agent_run_id, begun_at) VALUES ('r', now() - interval '3 hours')"),
		Warning, "sagas", "1 runs have been rolling back for more than 1h0m0s", "drainer sagas list --state begun",
	},
	"a saga failed": {
		by("INSERT INTO outbox.saga (agent_run_id, state) VALUES ('r', 'compensation_failed')"),
		Warning, "sagas", "1 runs could not be rolled back", "drainer sagas list --state compensation_failed",
	},
	"River is paused": {
		by("INSERT INTO outbox.river_queue (name, paused_at, updated_at) VALUES ('pages', now(), now())"),
		Problem, "jobs", `River's queue "pages" is paused`, "UPDATE outbox.river_queue SET paused_at = NULL;",
	},
	"no drainer works a job": {
		by("INSERT INTO outbox.river_job (kind, args, max_attempts, scheduled_at) VALUES ('page_send', '{}', 1, now() - interval '2 hours')"),
		Problem, "jobs", "a job of kind page_send has been due for 2h", "/readyz",
	},
	"no drainer looks for incidents": {
		by("UPDATE outbox.worker SET started_at = now() - interval '2 hours';" + looks + "; DELETE FROM outbox.river_job WHERE kind = 'page_look'"),
		Warning, "jobs", "no drainer has looked for incidents to page for 2h", "restart one after the other",
	},
	"notifications pile up": {
		func(w *world) {
			w.owner("LISTEN outbox; SELECT pg_notify('outbox', n || repeat('x', 7000)) FROM generate_series(1, 20) n")
			w.Limits.NotifyFull = 1e-9
			listener := w.connect()
			if _, err := listener.Exec(w.t.Context(), "LISTEN outbox", pgx.QueryExecModeSimpleProtocol); err != nil {
				w.t.Fatal(err)
			}
			if _, err := listener.Exec(w.t.Context(), "BEGIN", pgx.QueryExecModeSimpleProtocol); err != nil {
				w.t.Fatal(err)
			}
			w.owner("SELECT pg_notify('outbox', n || repeat('x', 7000)) FROM generate_series(1, 20) n")
		},
		Warning, "notifications", "of the server's queue of notifications is in use", "pg_terminate_backend(pid)",
	},
	"an open transaction pins xmin": {
		func(w *world) {
			w.Limits.Pinned = time.Millisecond
			pin := w.connect()
			if _, err := pin.Exec(w.t.Context(), "SET application_name = 'the culprit'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_sleep(0.002)", pgx.QueryExecModeSimpleProtocol); err != nil {
				w.t.Fatal(err)
			}
			w.Limits.Pinned = time.Nanosecond
		},
		Problem, "pinned xmin", `application "the culprit" of postgres, idle in transaction`, "pg_terminate_backend(",
	},
	"a table that should be nearly empty is full of dead rows": {
		func(w *world) {
			w.Limits.DeadTuples = 10
			w.owner("INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id) SELECT 'p', now(), n, 'run' FROM generate_series(1, 50) n")
			w.owner("DELETE FROM outbox.queue")
			w.owner("ANALYZE outbox.queue")
		},
		Warning, "dead tuples", " dead rows beside 0 live ones, never vacuumed", "VACUUM outbox.queue;",
	},
	"a prepared transaction pins xmin": {
		func(w *world) {
			w.Limits.Pinned = time.Nanosecond
			w.owner("CREATE TABLE forgotten (x int)")
			begun := w.connect()
			if _, err := begun.Exec(w.t.Context(), "BEGIN; INSERT INTO forgotten VALUES (1); PREPARE TRANSACTION 'forgotten'", pgx.QueryExecModeSimpleProtocol); err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(func() { w.owner("ROLLBACK PREPARED 'forgotten'") })
		},
		Problem, "pinned xmin", "prepared transaction forgotten", "ROLLBACK PREPARED 'forgotten'",
	},
	"the role may not see what others do": {
		by("REVOKE pg_read_all_stats FROM {role}"),
		NotChecked, "pinned xmin", "may not see", "GRANT pg_read_all_stats TO",
	},
	"the clock is minutes off": {
		func(w *world) { w.Now = func() time.Time { return time.Now().Add(2 * time.Minute) } },
		Problem, "clock", "this machine is 2m0s ahead of the database", "start a time service",
	},
	"the clock is seconds off": {
		func(w *world) { w.Now = func() time.Time { return time.Now().Add(-5 * time.Second) } },
		Warning, "clock", "behind the database", "start a time service",
	},
	"the provider's port is closed": {
		func(w *world) { w.Providers[0].Adapter = at("127.0.0.1:1") },
		Problem, "provider p", "TCP: nothing listens at 127.0.0.1:1", "start what should listen there",
	},
	"the provider's name is not known": {
		func(w *world) { w.Providers[0].Adapter = at("provider.invalid:443") },
		Problem, "provider p", "DNS: the name of provider.invalid:443 is not known here", "correct the name",
	},
	"the program of an adapter is not there": {
		func(w *world) { w.Providers[0].Adapter = program("/nowhere/to/be") },
		Problem, "provider p", "there is no program /nowhere/to/be", "correct the command",
	},
	"the program of an adapter may not be executed": {
		func(w *world) { w.Providers[0].Adapter = program(os.DevNull) },
		Problem, "provider p", "/dev/null may not be executed", "chmod +x",
	},
	"the program of an adapter is there, and was not started": {
		func(w *world) { w.Providers[0].Adapter = program("true") },
		NotChecked, "provider p", "it was not started", "drainer verify adapter --config FILE --provider p starts it",
	},
	"an adapter does not say where it goes": {
		func(w *world) { w.Providers[0].Adapter = struct{ dispatch.Adapter }{} },
		NotChecked, "provider p", "does not say where", "",
	},
}

func TestAFaultIsNamedWithItsCureAndNothingElseIs(t *testing.T) {
	t.Parallel()
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := healthy(t)
			fault.breakIt(w)
			found := w.finds(fault.verdict, fault.check, fault.seen, fault.cure)
			if isSQL(found.Cure) {
				w.follow(found.Cure)
				w.isWell()
			}
		})
	}
}

// by returns a fault that a superuser makes with SQL. {role} and {database} are the daemon's.
func by(sql string) func(*world) {
	return func(w *world) {
		w.owner(strings.NewReplacer("{role}", w.role, "{database}", w.database).Replace(sql))
	}
}

// isSQL reports whether a cure is SQL that can be executed without changes.
func isSQL(cure string) bool {
	for _, word := range []string{"GRANT ", "REVOKE ", "SET ", "ALTER ROLE ", "ALTER DATABASE ", "ALTER TABLE "} {
		if strings.HasPrefix(cure, word) && strings.HasSuffix(cure, ";") && !strings.Contains(cure, "if it is") && !strings.Contains(cure, "…") {
			return true
		}
	}
	return false
}

func TestACheckThatHangsKeepsNoOtherFromRunning(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	w.Limits.Check = 2 * time.Second
	locked := w.connect()
	if _, err := locked.Exec(t.Context(), "BEGIN; LOCK outbox.incident", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	w.finds(NotChecked, "incidents", "it took too long", "run it again")
}

func claimBy(worker, age string) string {
	return `INSERT INTO outbox.claim (worker_id, provider, server, claimed_at, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
		SELECT ` + worker + `, 'p', 'p', now() - interval '` + age + `', '{1}', '{1}', '{1}', '{null}', '{f}', '{f}', '{null}'`
}

func TestADatabaseThatCannotBeReachedIsToldByWhy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		address    func(*world, *url.URL)
		seen, cure string
	}{
		"port":     {func(_ *world, u *url.URL) { u.Host = "127.0.0.1:1" }, "TCP: nothing listens at 127.0.0.1:1", "correct the address"},
		"name":     {func(_ *world, u *url.URL) { u.Host = "db.invalid:5432" }, "DNS: the name of db.invalid:5432", "correct the name"},
		"database": {func(_ *world, u *url.URL) { u.Path = "/nowhere" }, "has no database nowhere", "CREATE DATABASE"},
		"password": {func(w *world, u *url.URL) { u.User = url.UserPassword(w.role, "wrong-"+w.password) }, "authentication: ", "correct user and password"},
		"tls":      {func(_ *world, u *url.URL) { u.RawQuery = "sslmode=require" }, "does not speak it, and sslmode demands it", "correct sslmode"},
		"silence":  {func(w *world, u *url.URL) { w.Limits.Check = time.Second; u.Host = listen(w.t) }, "did not answer in time", "whether it has connections left"},
		"protocol": {func(w *world, u *url.URL) { u.Host = hangUp(w.t) }, "ended the connection before it stood", "another protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := healthy(t)
			u, err := url.Parse(w.url(""))
			if err != nil {
				t.Fatal(err)
			}
			test.address(w, u)
			w.Database = w.config(u.String())
			w.finds(Problem, "connection", test.seen, test.cure)
			if _, err := Examine(t.Context(), w.Patient); err == nil {
				t.Error("there is no error")
			}
		})
	}
}

func TestOfSeveralServersTheOneThatAnsweredIsNamed(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	u, err := url.Parse(w.url(""))
	if err != nil {
		t.Fatal(err)
	}
	there := u.Host
	w.Database = w.config(strings.Replace(u.String(), there, "127.0.0.1:1,"+there, 1))
	if got := w.examine()[0]; !strings.HasPrefix(got.Seen, "connected to "+there+" as ") {
		t.Errorf("%+v", got)
	}
}

// hangUp accepts connections and closes them at once.
func hangUp(t *testing.T) (address string) {
	t.Helper()
	return dispatchtest.ServeConns(t, func(net.Conn) {})
}

func TestAVacuumPinsNoXmin(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	w.owner("CREATE TABLE slow AS SELECT n FROM generate_series(1, 100000) n")
	w.owner("DELETE FROM slow")
	ctx, stop := context.WithCancel(t.Context())
	vacuum := w.connect()
	if _, err := vacuum.Exec(ctx, "SET application_name = 'the vacuum'; SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = vacuum.Exec(ctx, "VACUUM slow") // until it is stopped
	}()
	defer func() { stop(); <-over }()
	conn := w.connect()
	drainertest.Eventually(t, "the vacuum holds a snapshot", func() bool {
		return drainertest.Value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'the vacuum'
			AND backend_xmin IS NOT NULL AND pid IN (SELECT pid FROM pg_stat_progress_vacuum))`)
	})
	w.Limits.Pinned = time.Nanosecond
	for _, f := range w.examine() {
		if f.Check == "pinned xmin" && strings.Contains(f.Seen, "the vacuum") {
			t.Errorf("found %+v", f)
		}
	}
}

func TestADatabaseThatCannotHoldAllTextIsAProblem(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	latin := w.database + "_latin"
	w.admin("CREATE DATABASE " + latin + " TEMPLATE template0 LOCALE 'C' ENCODING 'LATIN1'")
	w.Database = w.config(databaseURL(latin))
	if found := w.examine(); !slices.ContainsFunc(found, func(f Finding) bool {
		return f.Check == "encoding" && f.Verdict == Problem && strings.Contains(f.Seen, "LATIN1")
	}) {
		t.Errorf("found %s", lines(found))
	}
}

func TestAServerThatMayForgetIsAProblem(t *testing.T) {
	t.Parallel()
	forgetful, err := throwaway.Start(t.Context(), throwaway.WithoutDurability())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := forgetful.Stop(); err != nil {
			t.Error(err)
		}
	})
	w := healthy(t)
	w.Database = w.config(forgetful.URL)
	var found []Finding
	for _, f := range w.examine() {
		if f.Check == "durability" {
			found = append(found, f)
		}
	}
	for i, want := range []Finding{
		{"durability", Problem, "fsync is off: a crash of the machine may lose or damage everything", "start the server with fsync = on"},
		{"durability", Warning, "full_page_writes is off: a crash may damage pages, unless the file system writes them whole", "start the server with full_page_writes = on"},
		{"durability", Problem, "synchronous_commit is off: a crash forgets claims that were sent, and they are sent again", "start the server with synchronous_commit = on"},
	} {
		if i >= len(found) || found[i] != want {
			t.Errorf("want %+v, found %s", want, lines(found))
		}
	}
}
