-- $1 worker, then one element a lane: $2 the provider whose rows, each once, $3
-- limit, $4 server that is to serve them, $5 the provider's fallback or '';
-- $6 for how many seconds if this is a probe, of one lane, else 0; $7 for each lane
-- how many bytes its rows may have: each row also counts the 512 of its other columns,
-- and the first row is taken whatever it has. Then one element a part, in the order in which they fill
-- their lane: $8 the lane's place in $2, $9 and $10 the first and the last tenant, $11 limit, $12 and $13
-- cursor. A part of several tenants is divided by weight among the first of them that have due rows.
-- $17 in how many rows it looks ahead, or 0: for those of other runs than $18, and it takes the last one whatever it is.
-- $19 and $20 the last place of a part; $21 whether the part before is of the same tenant too.
-- $14 whether a lane may repeat an effect; $15 and $16 the history that this process knows and how far it saw it.
-- Rows and claims change place in one statement. A declared dead worker and a paused
-- provider claim nothing. A forward row of a run under compensation is stopped
-- instead of claimed, or, where something may have been applied, claimed to be
-- looked up and never to be sent.
--
--   who takes a row      | may have been applied, or is looked up | cannot have been applied
--   via is null          | its provider                           | its provider; while that one's breaker
--                        |                                        | is open, its fallback
--   via is the fallback  | the fallback                           | (a row keeps via only with its doubt)
--   via is another       | its provider's lane, which hands it to the one named, if that is configured
--   via is its provider  | its provider's lane, which ends it as unknown
--
-- After lost commits the fallback may have had the effect of any row that was queued or claimed before, whatever its via
-- says: a row comes back to the queue with the era of its claim. Such a row gets its own
-- provider's name as via. It keeps that until it has ended, also where it is released or lost first.
--
-- claim.go renders this for probes, which try a provider whose breaker opened, or an operation: then $2 and
-- $4 are the lane where its rows are parked; and for all other claims, of which Postgres would begin the probe's parts
-- each time. A probe takes the row that failed least, of the first that are due. Where
-- this side was refused, or the provider is overloaded, it takes the one that waits longest: such an answer to a probe
-- uses no try, so the same row would try each time.
WITH history AS MATERIALIZED (  -- none where the database may have lost commits since: nothing is claimed until a heartbeat has looked
  SELECT accepted_by IS NOT NULL AS accepted, era, doubted_before, doubted_through
  FROM (SELECT *, tableoid FROM outbox.history ORDER BY id DESC LIMIT 1) h
  WHERE id = $15::int AND tableoid = table_oid AND (lsn >= $16::pg_lsn) IS NOT FALSE
    AND CASE WHEN timeline IS NULL THEN true ELSE timeline = pg_catalog.concat('x'::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END
), {{if .Probe}}probe AS MATERIALIZED (
  SELECT reason FROM outbox.{{if .Operation}}tool{{else}}provider{{end}}
  WHERE name = ($4::text[])[1]{{if not .Operation}} AND NOT paused{{end}}
    AND ((state <> 'closed' AND open_until <= clock_timestamp())
      OR (state = 'half_open' AND NOT EXISTS (SELECT FROM outbox.worker w WHERE w.worker_id = prober)))
  FOR UPDATE SKIP LOCKED  -- one prober among all workers, and the others do not wait for it
), {{end}}lane AS MATERIALIZED (
  SELECT l.*, doubted_before, coalesce(own.state = 'closed', true) AS closed
  FROM unnest($2::text[], $3::int[], $4::text[], $5::text[], $7::bigint[], $14::boolean[])
    WITH ORDINALITY AS l (provider, room, server, fallback, bytes, once, n)
  JOIN history ON accepted OR NOT once  -- one row, or none
  LEFT JOIN outbox.provider own ON own.name = {{if .Operation}}split_part(l.provider, '/'::text, 1){{else}}l.provider{{end}}
  {{if not .Probe}}LEFT JOIN outbox.provider upstream ON upstream.name = l.server
  {{end}}WHERE NOT coalesce(own.paused, false)
    AND {{if .Operation}}coalesce(own.state = 'closed', true) AND {{end}}{{if .Probe}}EXISTS (SELECT FROM probe){{else}}coalesce(upstream.state = 'closed' AND NOT upstream.paused, true){{end}}
    AND EXISTS (SELECT FROM outbox.worker WHERE worker_id = $1::uuid)
), part AS MATERIALIZED (
  SELECT p.lane, p.place, p.after_time, p.after_intent, p.ahead > 0 AS ahead, coalesce(e.next_attempt_at, p.end_time) AS end_time, coalesce(e.intent_id, p.end_intent) AS end_intent, t.tenant, t.room
  FROM unnest($8::bigint[], $9::smallint[], $10::smallint[], $11::bigint[], $12::timestamptz[], $13::bigint[], $17::int[], $19::timestamptz[], $20::bigint[], $21::boolean[])
    WITH ORDINALITY AS p (lane, first, last, room, after_time, after_intent, ahead, end_time, end_intent, more, place)
  JOIN lane l ON l.n = p.lane
  LEFT JOIN LATERAL (
    SELECT next_attempt_at, intent_id FROM (
      SELECT next_attempt_at, intent_id FROM outbox.queue
      WHERE p.ahead > 0 AND provider = l.provider AND tenant = p.first AND next_attempt_at <= now() AND (next_attempt_at, intent_id) > (p.after_time, p.after_intent)
      ORDER BY next_attempt_at, intent_id LIMIT 20000) window_of  -- for the planner, who cannot know p.ahead
    OFFSET greatest(p.ahead - 1, 0) LIMIT 1) e ON true
  CROSS JOIN LATERAL (
    SELECT p.first AS tenant, coalesce((SELECT CASE WHEN p.more THEN 0 ELSE least(p.room, outbox.room_in_flight(l.provider, o.tenant_id)) END FROM outbox.tenant o WHERE o.tenant_id = p.first AND o.max_in_flight > 0), p.room) AS room
    WHERE p.first = p.last
    UNION ALL
    -- a loose index scan: one look a tenant, until enough of them are found whose first row is due, and that are not at their limit
    SELECT tenant, least(free, 1 + (least(p.room, l.room) - count(*) OVER ()) * weight / sum(weight) OVER ())
    FROM (
      WITH RECURSIVE walk AS (
        (SELECT q.tenant, q.next_attempt_at <= now() AS due FROM outbox.queue q
         WHERE q.provider = l.provider AND q.tenant >= p.first AND q.tenant <= p.last
         ORDER BY q.tenant, q.next_attempt_at LIMIT 1)
        UNION ALL
        SELECT n.* FROM walk CROSS JOIN LATERAL (
          SELECT q.tenant, q.next_attempt_at <= now() FROM outbox.queue q
          WHERE q.provider = l.provider AND q.tenant > walk.tenant AND q.tenant <= p.last
          ORDER BY q.tenant, q.next_attempt_at LIMIT 1) n
      )
      SELECT tenant, coalesce(o.weight, 1) AS weight, free.room AS free
      FROM walk LEFT JOIN LATERAL (SELECT weight, max_in_flight FROM outbox.tenant WHERE tenant_id = walk.tenant LIMIT 1) o ON true
      CROSS JOIN LATERAL (SELECT CASE WHEN o.max_in_flight > 0 THEN outbox.room_in_flight(l.provider, walk.tenant) ELSE p.room END AS room OFFSET 0) free
      WHERE due AND free.room > 0 LIMIT {{if .Probe}}64{{else}}least(64::bigint, p.room, l.room){{end}}) found
    WHERE p.first < p.last) t
  WHERE t.room > 0
), taken AS (
  DELETE FROM outbox.queue WHERE ctid = ANY (ARRAY(
    SELECT due.ctid FROM lane l CROSS JOIN LATERAL (
      SELECT ctid FROM (SELECT ctid, bytes, sum(512 + bytes) OVER (ROWS UNBOUNDED PRECEDING) AS filled FROM (
        SELECT few.* FROM (SELECT * FROM part WHERE lane = l.n ORDER BY place, tenant) p CROSS JOIN LATERAL (SELECT * FROM (
          SELECT ctid, bytes{{if .Probe}}, tries, next_attempt_at, intent_id{{end}} FROM outbox.queue
          WHERE provider = l.provider AND tenant = p.tenant AND next_attempt_at <= now()
            AND (next_attempt_at, intent_id) > (p.after_time, p.after_intent) AND (next_attempt_at, intent_id) <= (p.end_time, p.end_intent)
            AND (NOT p.ahead OR agent_run_id <> ALL ($18::text[]) OR intent_id = p.end_intent)
            AND CASE WHEN l.server = l.provider THEN via IS NULL OR (via <> l.fallback AND $6::float8 = 0::float8) OR via = split_part(l.provider, '/'::text, 1)
                     ELSE via = l.server OR (via IS NULL AND NOT maybe_applied AND NOT lookup AND NOT l.closed AND era >= l.doubted_before
                          -- an undo goes to the server that had the effect, and to no other
                          AND (SELECT compensates IS NULL FROM outbox.intent WHERE id = intent_id)) END
          ORDER BY next_attempt_at, intent_id
          LIMIT {{if .Probe}}100{{else}}12000  -- for the planner, who cannot know p.room: which is never that much{{end}}
          FOR UPDATE SKIP LOCKED) due{{if not .Probe}} LIMIT p.room{{end}}) few{{if .Probe}}
        ORDER BY CASE WHEN (SELECT reason = ANY (ARRAY['credentials_refused', 'forbidden', 'misconfigured', 'overload']) FROM probe) THEN 0 ELSE tries END, next_attempt_at, intent_id{{end}}
        LIMIT l.room) roomy) summed  -- below the sum, which reads one row ahead: no row is locked that is not counted
      WHERE filled - bytes - 512 < l.bytes) due))
  RETURNING pg_catalog.array_position($2::text[], provider) AS n,
            intent_id, tenant, agent_run_id, next_attempt_at, attempt, tries, first_attempt_at, maybe_applied, lookup, via,
            era < (SELECT doubted_before FROM history) AS doubted
), candidate AS (
  SELECT t.n, t.intent_id, t.tenant, t.next_attempt_at, t.attempt + 1 AS attempt, t.tries + 1 AS tries,
         CASE WHEN t.doubted THEN least(t.first_attempt_at, (
           -- what undoes a step, and was not there when commits were lost, may have been there before, since its step was
           SELECT coalesce(step.created_at, i.created_at) FROM outbox.intent i
           LEFT JOIN outbox.intent step ON step.id = i.compensates AND i.id > (SELECT doubted_through FROM history)
           WHERE i.id = t.intent_id)) ELSE t.first_attempt_at END AS first_attempt_at,
         t.maybe_applied OR t.doubted AS maybe_applied, t.lookup,
         CASE WHEN t.doubted AND ($5::text[])[t.n] <> '' AND (SELECT compensates IS NULL FROM outbox.intent WHERE id = t.intent_id)
              THEN split_part(($2::text[])[t.n], '/'::text, 1) ELSE coalesce(t.via, nullif(($4::text[])[t.n], ($2::text[])[t.n])) END AS via,
         s.agent_run_id IS NOT NULL AND NOT t.lookup
           -- no EXISTS: that could be planned as one look at every undo there is
           AND (SELECT compensates IS NULL FROM outbox.intent WHERE id = t.intent_id) AS closed,
         s.agent_run_id IS NOT NULL AS in_saga,
         CASE WHEN t.tenant > 0 AND t.tenant IN (SELECT tenant_id FROM outbox.tenant WHERE max_in_flight > 0) THEN t.tenant END AS counted
  FROM taken t
  -- LIMIT keeps this a look a row: where there were no sagas when it was planned, a join would read all that came since
  LEFT JOIN LATERAL (SELECT agent_run_id FROM outbox.saga WHERE agent_run_id = t.agent_run_id LIMIT 1) s ON true
), claimed AS (
  INSERT INTO outbox.claim (worker_id, provider, server, era, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias, tenant)
  SELECT $1::uuid, {{if .Operation}}split_part(($2::text[])[n], '/'::text, 1), split_part(($4::text[])[n], '/'::text, 1){{else}}($2::text[])[n], ($4::text[])[n]{{end}}, (SELECT era FROM history), pg_catalog.array_agg(intent_id), pg_catalog.array_agg(attempt), pg_catalog.array_agg(tries),
         pg_catalog.array_agg(first_attempt_at), pg_catalog.array_agg(maybe_applied), pg_catalog.array_agg(lookup OR closed), pg_catalog.array_agg(via), counted
  FROM candidate WHERE NOT closed OR maybe_applied GROUP BY n, counted
  RETURNING claim_id, provider, tenant
){{if .Probe}}, probed AS (
  UPDATE outbox.{{if .Operation}}tool{{else}}provider{{end}}
  SET state = 'half_open', prober = $1::uuid, open_until = clock_timestamp() + make_interval(secs => $6::float8)
  WHERE name = ($4::text[])[1] AND EXISTS (SELECT FROM claimed)
){{end}}, stopped AS (
  INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
  SELECT intent_id, attempt, 'saga', 'cancelled', 'cancelled' FROM candidate WHERE closed AND NOT maybe_applied
)
-- A stopped row has no claim; it is returned for the cursor's sake. The clock is asked,
-- for settling may have taken a part of this transaction's time. Payloads are
-- read here: carrying them through all of the above, or sorting them, takes longer.
SELECT n, CASE WHEN closed AND NOT maybe_applied THEN 0{{if not .Probe}}
              WHEN counted IS NOT NULL THEN (SELECT claim_id FROM claimed WHERE tenant = counted AND provider = ($2::text[])[n]){{end}} ELSE
         {{if .Probe}}(SELECT claim_id FROM claimed){{else}}(SELECT pg_catalog.array_agg(claim_id ORDER BY lane)
          FROM pg_catalog.unnest($2::text[]) WITH ORDINALITY AS l (provider, lane) LEFT JOIN claimed ON claimed.provider = l.provider AND tenant IS NULL)[n]{{end}} END,
       intent_id, attempt, tries, first_attempt_at, clock_timestamp(), greatest(i.created_at, i.not_before), next_attempt_at,
       maybe_applied, lookup, closed, in_saga, coalesce(via, ''), i.compensates,
       i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.payload, i.headers,
       -- only a lookup needs what an earlier attempt brought
       CASE WHEN lookup THEN (SELECT provider_ref FROM outbox.attempt a
         WHERE a.intent_id = candidate.intent_id AND provider_ref IS NOT NULL ORDER BY a.attempt DESC LIMIT 1) END,
       coalesce(i.namespace, ''), coalesce(new_key.generation, 0), coalesce(new_key.doubt, false), candidate.tenant,
       CASE WHEN candidate.tenant = 0 THEN 1 ELSE coalesce((SELECT t.weight FROM outbox.tenant t WHERE t.tenant_id = candidate.tenant), 1)
         * CASE WHEN counted IS NULL THEN 1 ELSE -1 END END  -- below 0: it has a limit in flight
FROM candidate JOIN outbox.intent i ON i.id = intent_id
LEFT JOIN LATERAL (
  SELECT generation, doubt FROM outbox.generation g WHERE g.intent_id = candidate.intent_id LIMIT 1
) new_key ON candidate.attempt > 2;  -- an attempt and an operator came before it
