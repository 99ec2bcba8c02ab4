package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// countLimit bounds each count, so that a check stays cheap with a long queue.
const countLimit = 1000

func limit(*examination) any { return countLimit }

func lease(x *examination) any { return x.Lease.Seconds() }

// queuedCTE lists the providers that have rows in the queue. It takes one index look for each provider, independently of
// the number of rows.
const queuedCTE = `
	WITH RECURSIVE queued AS (
		(SELECT provider FROM outbox.queue ORDER BY provider LIMIT 1)
		UNION ALL
		SELECT (SELECT q.provider FROM outbox.queue q WHERE q.provider > queued.provider ORDER BY q.provider LIMIT 1)
		FROM queued WHERE provider IS NOT NULL)`

var outboxChecks = []check{
	{name: "workers", look: each(queuedCTE+`
		SELECT count(*) FILTER (WHERE beat_at >= now() - make_interval(secs => $1::float8)),
			count(*) FILTER (WHERE beat_at < now() - make_interval(secs => $1::float8)),
			EXISTS (SELECT FROM queued WHERE provider IS NOT NULL AND EXISTS (
				SELECT FROM outbox.queued_tenants(queued.provider) AS t (tenant) CROSS JOIN LATERAL (
					SELECT FROM outbox.queue q WHERE q.provider = queued.provider AND q.tenant = t.tenant AND q.next_attempt_at <= now() LIMIT 1) r))
		FROM outbox.worker`,
		func(x *examination, seen struct {
			Alive, Silent int64
			HasDue        bool
		},
		) (found []Finding) {
			const start = "start drainer run --config …; if it runs, its log says why it has no heartbeat here"
			switch {
			case seen.Alive > 0:
				found = append(found, ok("%d alive", seen.Alive))
			case seen.HasDue:
				found = append(found, problem(start, "no process drains, and intents are due"))
			default:
				found = append(found, warning(start, "no process drains; nothing is due"))
			}
			if seen.Silent > 0 {
				found = append(found, warning("nothing, while another worker lives: it recovers their rows; else start one",
					"%d without a heartbeat for %s", seen.Silent, x.Lease))
			}
			return found
		}, lease)},

	{name: "claims", well: "none is older than it may be", look: each(`
		SELECT c.provider, w.worker_id IS NULL, sum(pg_catalog.cardinality(c.intent_ids))::bigint,
			extract(epoch FROM now() - min(c.claimed_at))::float8
		FROM outbox.claim c LEFT JOIN outbox.worker w USING (worker_id)
		GROUP BY 1, 2 ORDER BY 1, 2`,
		func(x *examination, c struct {
			Provider      string
			Orphaned      bool // the worker's row was deleted
			Intents       int64
			OldestSeconds float64
		},
		) []Finding {
			switch age := seconds(c.OldestSeconds); {
			case c.Orphaned && age > 2*x.Lease:
				return []Finding{problem("start a drainer whose configuration has the provider: it recovers them",
					"%q has %d intents claimed by workers that are gone, the oldest %s ago", c.Provider, c.Intents, short(age))}
			case !c.Orphaned && age > x.patience(c.Provider):
				return []Finding{warning("see its log for the provider, and how long its timeout is; restart the worker if it hangs",
					"%q has intents in progress for %s at a worker that lives", c.Provider, short(age))}
			}
			return nil
		})},

	// During a rolling update, workers differ for a while.
	{name: "configurations", well: "workers have the same one, as far as they serve the same providers", look: each(`
		WITH settled AS (SELECT * FROM outbox.worker
			WHERE started_at < now() - interval '10 minutes' AND beat_at >= now() - make_interval(secs => $1::float8))
		SELECT p.name, pg_catalog.count(DISTINCT p.fingerprint)::int, (pg_catalog.array_agg(w.worker_id::text ORDER BY w.started_at))[1]
		FROM settled w CROSS JOIN LATERAL unnest(w.providers, w.fingerprints) AS p (name, fingerprint)
		WHERE p.fingerprint <> ''
		GROUP BY 1 HAVING pg_catalog.count(DISTINCT p.fingerprint) > 1
		UNION ALL -- where only another setting differs
		SELECT '', pg_catalog.count(DISTINCT w.configuration)::int, (pg_catalog.array_agg(w.worker_id::text ORDER BY w.started_at))[1]
		FROM settled w CROSS JOIN LATERAL (SELECT pg_catalog.array_agg(ARRAY[p.name, p.fingerprint] ORDER BY p.name) -- in whichever order its file has them
			FROM unnest(w.providers, w.fingerprints) AS p (name, fingerprint)) AS serves (blocks)
		WHERE w.configuration <> ''
		GROUP BY serves.blocks HAVING pg_catalog.count(DISTINCT w.configuration) > 1
		ORDER BY 1`,
		func(_ *examination, c struct {
			Provider string
			Versions int
			Oldest   string
		},
		) []Finding {
			const cure = "see which worker has which, in the console's Configuration or by drainer status -o json; reload or restart those that have not got the new file"
			if c.Provider == "" {
				return []Finding{warning(cure, "workers of the same providers have had %d configurations for over 10 minutes; the oldest worker is %s", c.Versions, c.Oldest)}
			}
			return []Finding{warning(cure, "workers have had %d configurations of %q for over 10 minutes; the oldest worker is %s", c.Versions, c.Provider, c.Oldest)}
		}, lease)},

	{name: "unconfigured", well: "this configuration or a live worker knows the provider of every row in the queue", look: lookForUnconfigured},

	// A missing namespace is no fault while no other outbox uses the same account at a provider. The
	// doctor cannot see whether one does.
	{name: "namespace", look: each(`
		SELECT coalesce((SELECT value FROM outbox.setting WHERE name = 'namespace'), ''),
			ARRAY(SELECT name FROM outbox.provider WHERE namespace IS NULL ORDER BY name LIMIT 20),
			EXISTS (SELECT FROM outbox.provider)`,
		func(_ *examination, seen struct {
			Own     string
			Without []string // providers without a namespace
			Any     bool
		},
		) []Finding {
			switch {
			case seen.Own != "":
				return []Finding{ok("keys have the namespace %s, or that of their provider", seen.Own)}
			case !seen.Any:
				return []Finding{ok("the outbox has no namespace, and no daemon has said yet which providers it has")}
			case len(seen.Without) == 0:
				return []Finding{ok("every provider has a namespace of its own; the outbox has none")}
			}
			return []Finding{ok("no namespace is set: another outbox that uses the same account as %s could make the same keys, and then one effect of two is lost. "+
				"Where there is one, INSERT INTO outbox.setting VALUES ('namespace', 'NAME') as the schema's owner", strings.Join(seen.Without, ", "))}
		})},

	{name: "tenants", look: each(`
		WITH has AS ( -- from PostgreSQL 16 on, the maker of a role is a MEMBER that may only administer it
			SELECT CASE WHEN current_setting('server_version_num'::text)::int >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END AS role),
		login AS (
			SELECT r.rolname::text AS name, (SELECT count(*) FROM outbox.tenant t JOIN pg_roles p ON p.rolname = t.role AND pg_has_role(r.oid, p.oid, has.role)) AS tenants
			FROM has CROSS JOIN pg_roles r JOIN pg_roles agent ON agent.rolname = 'outbox_agent' AND pg_has_role(r.oid, agent.oid, has.role)
			WHERE r.rolcanlogin AND NOT r.rolsuper)
		SELECT (SELECT count(*) FROM outbox.tenant),
			(SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass('outbox.intent'::text)::oid AND tgname IN ('set_tenant', 'keep_walls') AND tgenabled <> 'D'),
			ARRAY(SELECT role::text FROM outbox.tenant WHERE role NOT IN (SELECT rolname FROM pg_roles) ORDER BY 1 LIMIT 20),
			ARRAY(SELECT name FROM login WHERE tenants > 1 ORDER BY 1 LIMIT 20),
			ARRAY(SELECT name FROM login WHERE tenants = 0 ORDER BY 1 LIMIT 20)`,
		func(_ *examination, seen struct {
			Tenants, Walls       int64
			Missing, Torn, Loose []string // roles that do not exist; logins of several tenants; logins of no tenant
		},
		) (found []Finding) {
			if up := seen.Walls == 2; seen.Walls == 1 || up != (seen.Tenants > 0) {
				found = append(found, problem("as the schema's owner: ALTER TABLE outbox.intent ENABLE TRIGGER set_tenant, ENABLE TRIGGER keep_walls; where outbox.tenant is empty, DISABLE both",
					"%d tenants are listed, and %d of the 2 triggers that wall them off are enabled", seen.Tenants, seen.Walls))
			}
			if seen.Tenants == 0 {
				return append(found, ok("none is listed: all agents see and enqueue alike"))
			}
			if len(seen.Missing) > 0 {
				found = append(found, warning("CREATE ROLE … NOLOGIN, and grant it to the tenant's logins; or delete its row from outbox.tenant", "tenants have roles that do not exist: %s", abridge(seen.Missing)))
			}
			if len(seen.Torn) > 0 {
				found = append(found, problem("REVOKE all but one of them", "logins have the roles of several tenants, and may not enqueue: %s", abridge(seen.Torn)))
			}
			if len(seen.Loose) > 0 {
				found = append(found, warning("GRANT the role of their tenant to them", "agents' logins have the role of no tenant, and share what no tenant enqueued: %s", abridge(seen.Loose)))
			}
			return append(found, ok("%d are walled off from each other", seen.Tenants))
		})},

	{name: "providers' gates", well: "no provider is paused, every circuit breaker is closed", look: lookAtGates},

	{name: "history", well: "no daemon has looked yet", look: each(`
		SELECT coalesce(h.change, ''), h.accepted_by IS NOT NULL, here.timeline IS NOT NULL, here.system_identifier IS NOT NULL
		FROM outbox.whereabouts() here, (SELECT * FROM outbox.history ORDER BY id DESC LIMIT 1) h`,
		func(_ *examination, seen struct {
			Change             string
			Accepted           bool
			Timeline, Identity bool // the server shows its timeline and its system identifier
		},
		) (found []Finding) {
			if !seen.Accepted {
				found = append(found, problem("drainer history, then drainer history accept",
					"the database may have lost commits; providers with a non_idempotent tool or a fallback wait: %s", seen.Change))
			}
			if !seen.Timeline {
				found = append(found, warning("name a file under history.witness, and accept the loss by hand after each failover: docs/guarantees.md",
					"the server hides its timeline: a promoted standby that lost the last commits is noticed only by daemons that ran before"))
			}
			if !seen.Identity {
				found = append(found, warning("GRANT EXECUTE ON FUNCTION pg_control_system() TO outbox_drainer;",
					"the server hides its system identifier: a logical copy is told by the oids of its database and its table alone"))
			}
			if len(found) == 0 {
				found = append(found, ok("it is accepted, and the server shows where it stands"))
			}
			return found
		})},

	{name: "incidents", well: "each is acknowledged or resolved", look: each(`
		SELECT kind, count(*), min(opened_at)
		FROM (SELECT kind, opened_at FROM outbox.incident WHERE acknowledged_at IS NULL AND resolved_at IS NULL LIMIT $1::int) i
		GROUP BY 1 ORDER BY 1`,
		func(_ *examination, open struct {
			Kind   string
			Number int64
			Oldest time.Time
		},
		) []Finding {
			return []Finding{warning("drainer incidents list, then drainer incidents ack",
				"%s of kind %s not acknowledged, the oldest since %s", atLeast(open.Number), open.Kind, open.Oldest.UTC().Format(time.RFC3339))}
		}, limit)},

	{name: "sagas", well: "none is stuck or failed", look: each(`
		SELECT count(*), coalesce(max(seconds), 0)::float8,
			(SELECT count(*) FROM (SELECT FROM outbox.saga WHERE state = 'compensation_failed' LIMIT $1::int) f)
		FROM (
			SELECT extract(epoch FROM now() - begun_at) AS seconds FROM outbox.saga
			WHERE state = 'begun' AND begun_at < now() - make_interval(secs => $2::float8) ORDER BY begun_at LIMIT $1::int) s`,
		func(_ *examination, seen struct {
			Stuck         int64
			OldestSeconds float64
			Failed        int64
		},
		) (found []Finding) {
			if seen.Stuck > 0 {
				found = append(found, warning("drainer sagas list --state begun; drainer sagas show RUN lists what it waits for",
					"%s runs have been rolling back for more than %s, the oldest for %s", atLeast(seen.Stuck), short(sagaAge), short(seconds(seen.OldestSeconds))))
			}
			if seen.Failed > 0 {
				found = append(found, warning("drainer sagas list --state compensation_failed; then drainer sagas retry or resolve",
					"%s runs could not be rolled back", atLeast(seen.Failed)))
			}
			return found
		}, limit, func(*examination) any { return sagaAge.Seconds() })},

	{name: "jobs", well: "pages and compensations come round", look: each(`
		SELECT ARRAY(SELECT name FROM outbox.river_queue WHERE paused_at IS NOT NULL ORDER BY name LIMIT 10),
			coalesce(due.kind, ''), coalesce(extract(epoch FROM now() - due.scheduled_at), 0)::float8,
			coalesce(extract(epoch FROM now() - greatest(
				(SELECT min(started_at) FROM outbox.worker WHERE beat_at >= now() - make_interval(secs => $1::float8)),
				(SELECT max(attempted_at) FROM outbox.river_job WHERE kind = 'page_look' AND state OPERATOR(pg_catalog.=) 'completed'))), 0)::float8,
			coalesce(extract(epoch FROM now() - greatest(
				(SELECT min(started_at) FROM outbox.worker WHERE beat_at >= now() - make_interval(secs => $1::float8)),
				(SELECT max(attempted_at) FROM outbox.river_job WHERE kind = 'saga_look' AND state OPERATOR(pg_catalog.=) 'completed'))), 0)::float8
		FROM (SELECT) one LEFT JOIN LATERAL (
			SELECT kind, scheduled_at FROM outbox.river_job WHERE state OPERATOR(pg_catalog.=) 'available' AND scheduled_at <= now()
			ORDER BY scheduled_at LIMIT 1) due ON true`,
		func(_ *examination, seen struct {
			Paused     []string // River's paused queues
			DueKind    string   // kind of the job that has been due for longest
			DueSeconds float64
			// LookSeconds is how long no process has looked for incidents to page. It is at most the age of
			// the oldest living worker.
			LookSeconds float64
			SagaSeconds float64 // the same for successful passes of River over sagas
		},
		) (found []Finding) {
			const restart = "see the drainers' logs, and /readyz of each; restart one after the other"
			for _, queue := range seen.Paused {
				found = append(found, problem("UPDATE outbox.river_queue SET paused_at = NULL;", "River's queue %q is paused: what is in it waits", queue))
			}
			if due := seconds(seen.DueSeconds); due > jobAge {
				found = append(found, problem(restart, "a job of kind %s has been due for %s, and no drainer works it: pages and compensations may wait", seen.DueKind, short(due)))
			}
			if age := seconds(seen.LookSeconds); age > jobAge {
				found = append(found, warning("start drainer run without --once; if it runs: "+restart, "no drainer has looked for incidents to page for %s", short(age)))
			}
			if age := seconds(seen.SagaSeconds); age > jobAge {
				found = append(found, warning("start drainer run without --once; if it runs: "+restart, "no pass over sagas has ended well for %s: compensations may wait", short(age)))
			}
			return found
		}, lease)},
}

// patience is how old a provider's claim may be: longer than its rows may wait and then take.
func (x *examination) patience(provider string) time.Duration {
	longest := 30 * time.Second
	for _, p := range x.Providers {
		if p.Name == provider {
			longest = p.Timeout
		}
	}
	return 5*longest + time.Minute
}

// queued is a provider that has rows in the queue.
type queued struct {
	Provider   string
	Rows       int64 // at most countLimit
	DueSeconds float64
	Served     bool // a living worker serves it
}

// lookForUnconfigured finds rows that neither this configuration nor a living worker would send.
func lookForUnconfigured(ctx context.Context, x *examination) (found []Finding, err error) {
	all, err := read[queued](ctx, x, queuedCTE+`
		SELECT n.provider,
			(SELECT count(*) FROM (SELECT FROM outbox.queue q WHERE q.provider = n.provider LIMIT $1::int) r),
			coalesce((SELECT extract(epoch FROM now() - min(r.next_attempt_at)) FROM outbox.queued_tenants(n.provider) AS t (tenant) CROSS JOIN LATERAL (
				SELECT q.next_attempt_at FROM outbox.queue q WHERE q.provider = n.provider AND q.tenant = t.tenant
				ORDER BY q.next_attempt_at LIMIT 1) r), 0)::float8,
			EXISTS (SELECT FROM outbox.worker w WHERE n.provider = ANY (w.providers OPERATOR(pg_catalog.||) w.tools) AND w.beat_at >= now() - make_interval(secs => $2::float8))
		FROM (SELECT provider FROM queued WHERE provider IS NOT NULL LIMIT 1000) n ORDER BY 1`, countLimit, x.Lease.Seconds())
	if err != nil {
		return nil, err
	}
	for _, q := range all {
		i := slices.IndexFunc(x.Providers, func(p dispatch.Provider) bool { return p.Name == q.Provider })
		provider, operation, parked := strings.Cut(q.Provider, "/")
		switch {
		case parked && x.has(provider, operation): // the operation is shut, or its rows are about to leave the lane
		case parked && !q.Served: // daemons have parked it, because its provider does not have the operation
			found = append(found, problem(fmt.Sprintf("add %q under providers.%s.tools, and reload or restart; or drainer intents cancel", operation, provider),
				"%s the tool %q, which no living worker knows", rowsThat("want", q.Rows), q.Provider))
		case i >= 0:
			unknown, err := x.unknownTools(ctx, x.Providers[i])
			if err != nil {
				return nil, err
			}
			found = append(found, unknown...)
		case !q.Served:
			since := ""
			if q.DueSeconds > 0 {
				since = fmt.Sprintf(", due for %s", short(seconds(q.DueSeconds)))
			}
			found = append(found, problem(fmt.Sprintf("add %q under providers and start a drainer with it; or drainer intents cancel --provider %[1]q", q.Provider),
				"%s for the provider %q, which neither this configuration nor a living worker knows%s", rowsThat("wait", q.Rows), q.Provider, since))
		}
	}
	return found, nil
}

// has reports whether this configuration has the operation.
func (x *examination) has(provider, operation string) bool {
	return slices.ContainsFunc(x.Providers, func(p dispatch.Provider) bool {
		_, known := p.Tools[operation]
		return known && p.Name == provider
	})
}

// unknownTools finds tools that the configuration lacks, among the first countLimit rows of a provider.
func (x *examination) unknownTools(ctx context.Context, provider dispatch.Provider) (found []Finding, err error) {
	type tool struct {
		Name string
		Rows int64
	}
	tools, err := read[tool](ctx, x, `
		SELECT i.tool_name, count(*)
		FROM (SELECT r.intent_id FROM outbox.queued_tenants($1::text) AS t (tenant) CROSS JOIN LATERAL (
			SELECT intent_id, next_attempt_at FROM outbox.queue WHERE provider = $1::text AND tenant = t.tenant
			ORDER BY next_attempt_at LIMIT $2::int) r ORDER BY r.next_attempt_at LIMIT $2::int) q
		JOIN outbox.intent i ON i.id = q.intent_id
		GROUP BY 1 ORDER BY 1`, provider.Name, countLimit)
	for _, t := range tools {
		operation := dispatch.Tuple{ToolName: t.Name}.Operation()
		if _, known := provider.Tools[operation]; !known {
			found = append(found, problem(fmt.Sprintf("add %q under providers.%s.tools, and reload or restart", operation, provider.Name),
				"%s the tool %q, which this configuration does not have", rowsThat("want", t.Rows), t.Name))
		}
	}
	return found, err
}

// rowsThat returns a number of rows with a verb, such as "2 rows wait".
func rowsThat(verb string, n int64) string {
	if n == 1 {
		return "1 row " + verb + "s"
	}
	return atLeast(n) + " rows " + verb
}

func atLeast(n int64) string {
	if n >= countLimit {
		return fmt.Sprintf("%d or more", n)
	}
	return fmt.Sprint(n)
}

func lookAtGates(ctx context.Context, x *examination) (found []Finding, err error) {
	pooled, err := x.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer pooled.Release()
	gates, err := operator.Open(pooled.Conn()).Providers(ctx)
	for _, gate := range gates {
		if gate.Paused {
			found = append(found, warning("drainer providers list says who paused it and why; drainer providers resume "+gate.Provider,
				"%q is paused: nothing is sent to it", gate.Provider))
		}
		if gate.Breaker != "closed" {
			reason := ""
			if gate.BreakerReason != nil {
				reason = ": " + *gate.BreakerReason
			}
			found = append(found, warning("see whether it can be reached, below; the breaker closes by itself when it answers again",
				"the circuit breaker of %q is %s%s", gate.Provider, gate.Breaker, reason))
		}
	}
	return found, err
}
