-- Claims due rows for some lanes: the rows move from outbox.queue to outbox.claim in one statement.
--
--   $1        the worker
--             one element for each lane; no provider twice:
--   $2 $4 $5  the provider that owns the rows, the server that is to serve them, the provider's fallback or ''
--   $3 $7     limits: rows, and bytes. A row counts 512 bytes more than its payload; the first row is always taken
--   $14       whether a row of the lane may repeat an effect
--   $6        if this is a probe, which has one lane: for how many seconds; else 0
--             one element for each part, in the order in which parts fill their lane:
--   $8        the lane's place in $2, from 1
--   $9 $10    the first and the last tenant. A part of several tenants is divided by weight among the first of them that
--             have due rows
--   $11       limit of rows
--   $12 $13   the cursor: only rows behind it are taken
--   $19 $20   the last place that may be taken
--   $21       whether an earlier part is of the same tenant
--   $17       if above 0, the part is a look ahead among that many rows: it takes rows of runs that are not in $18, and
--             the last of the rows whatever its run
--   $15 $16   the history that this process knows, and the log position up to which it saw it
--
-- A worker that was declared dead claims nothing, and no rows of a paused provider are claimed. A forward row of a run
-- that is rolled back is cancelled in place of being claimed. If it may have been applied, it is claimed as a lookup and
-- not sent any more.
--
--   a row is taken by    | may have been applied, or is looked up | cannot have been applied
--   via is null          | its provider                           | its provider; while that one's breaker
--                        |                                        | is open, its fallback
--   via is the fallback  | the fallback                           | (a row keeps via only while in doubt)
--   via is another       | its provider's lane, which sends it to the one named, if that is configured
--   via is its provider  | its provider's lane, which ends it as unknown
--
-- After lost commits, the fallback may have had the effect of any row that was queued or claimed before the loss, even if
-- via does not say so. The row's era tells that; a row returns to the queue with the era of its claim. Such a row gets
-- the name of its own provider as via, and keeps it until it has ended, even if it is released or lost in between.
--
-- claim.go renders this text for probes and for all other claims, since Postgres would start the probe's parts of a common
-- one each time. A probe tries a provider whose breaker is open, or an operation: then $2 and $4 are the lane in which
-- the operation's rows are parked. Of the first due rows a probe takes the one with the fewest tries. If this side was
-- refused, or the provider is overloaded, it takes the row that has waited longest: such an answer to a probe uses no
-- try, so the row with the fewest tries would be the same one each time.
WITH history AS MATERIALIZED (  -- no row if the database may have lost commits: then nothing is claimed before a heartbeat has looked
  SELECT accepted_by IS NOT NULL AS accepted, era, doubted_before, doubted_through
  FROM (SELECT *, tableoid FROM outbox.history ORDER BY id DESC LIMIT 1) h
  WHERE id = $15::int AND tableoid = table_oid AND (lsn >= $16::pg_lsn) IS NOT FALSE
    AND CASE WHEN timeline IS NULL THEN true ELSE timeline = pg_catalog.concat('x'::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END
), {{if .Probe}}probe AS MATERIALIZED (
  SELECT reason FROM outbox.{{if .Operation}}tool{{else}}provider{{end}}
  WHERE name = ($4::text[])[1]{{if not .Operation}} AND NOT paused{{end}}
    AND ((state <> 'closed' AND open_until <= clock_timestamp())
      OR (state = 'half_open' AND NOT EXISTS (SELECT FROM outbox.worker w WHERE w.worker_id = prober)))
  FOR UPDATE SKIP LOCKED  -- one worker probes, and the others do not wait for it
), {{end}}lane AS MATERIALIZED (
  SELECT l.*, doubted_before, coalesce(own.state = 'closed', true) AS closed
  FROM unnest($2::text[], $3::int[], $4::text[], $5::text[], $7::bigint[], $14::boolean[])
    WITH ORDINALITY AS l (provider, room, server, fallback, bytes, once, n)
  JOIN history ON accepted OR NOT once  -- history has at most one row
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
      ORDER BY next_attempt_at, intent_id LIMIT 20000) window_of  -- tells the planner a bound, since it cannot know p.ahead
    OFFSET greatest(p.ahead - 1, 0) LIMIT 1) e ON true
  CROSS JOIN LATERAL (
    SELECT p.first AS tenant, coalesce((SELECT CASE WHEN p.more THEN 0 ELSE least(p.room, outbox.room_in_flight(l.provider, o.tenant_id)) END FROM outbox.tenant o WHERE o.tenant_id = p.first AND o.max_in_flight > 0), p.room) AS room
    WHERE p.first = p.last
    UNION ALL
    -- a loose index scan: it reads one entry for each tenant, until it has found enough tenants with a due row and room below their limit
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
                          -- an undo goes only to the server that had the effect
                          AND (SELECT compensates IS NULL FROM outbox.intent WHERE id = intent_id)) END
          ORDER BY next_attempt_at, intent_id
          LIMIT {{if .Probe}}100{{else}}12000  -- tells the planner a bound, since it cannot know p.room, which is always lower{{end}}
          FOR UPDATE SKIP LOCKED) due{{if not .Probe}} LIMIT p.room{{end}}) few{{if .Probe}}
        ORDER BY CASE WHEN (SELECT reason = ANY (ARRAY['credentials_refused', 'forbidden', 'misconfigured', 'overload']) FROM probe) THEN 0 ELSE tries END, next_attempt_at, intent_id{{end}}
        LIMIT l.room) roomy) summed  -- the limit is below the sum, which reads one row more: so only counted rows are locked
      WHERE filled - bytes - 512 < l.bytes) due))
  RETURNING pg_catalog.array_position($2::text[], provider) AS n,
            intent_id, tenant, agent_run_id, next_attempt_at, attempt, tries, first_attempt_at, maybe_applied, lookup, via,
            era < (SELECT doubted_before FROM history) AS doubted
), candidate AS (
  SELECT t.n, t.intent_id, t.tenant, t.next_attempt_at, t.attempt + 1 AS attempt, t.tries + 1 AS tries,
         CASE WHEN t.doubted THEN least(t.first_attempt_at, (
           -- an undo that was enqueued after the loss may repeat a lost one, so its first attempt may be as old as its step
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
  -- LIMIT makes this one look-up for each row. A join that was planned without sagas would read all that exist by now
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
-- A cancelled row has no claim; it is returned because the cursor moves behind it. clock_timestamp() is needed, since
-- settling may have taken a part of this transaction's time. Payloads are read only here: carrying them through the
-- parts above, or sorting them, takes longer.
SELECT n, CASE WHEN closed AND NOT maybe_applied THEN 0{{if not .Probe}}
              WHEN counted IS NOT NULL THEN (SELECT claim_id FROM claimed WHERE tenant = counted AND provider = ($2::text[])[n]){{end}} ELSE
         {{if .Probe}}(SELECT claim_id FROM claimed){{else}}(SELECT pg_catalog.array_agg(claim_id ORDER BY lane)
          FROM pg_catalog.unnest($2::text[]) WITH ORDINALITY AS l (provider, lane) LEFT JOIN claimed ON claimed.provider = l.provider AND tenant IS NULL)[n]{{end}} END,
       intent_id, attempt, tries, first_attempt_at, clock_timestamp(), greatest(i.created_at, i.not_before), next_attempt_at,
       maybe_applied, lookup, closed, in_saga, coalesce(via, ''), i.compensates,
       i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.payload, i.headers,
       -- only a lookup needs the reference of an earlier attempt
       CASE WHEN lookup THEN (SELECT provider_ref FROM outbox.attempt a
         WHERE a.intent_id = candidate.intent_id AND provider_ref IS NOT NULL ORDER BY a.attempt DESC LIMIT 1) END,
       coalesce(i.namespace, ''), coalesce(new_key.generation, 0), coalesce(new_key.doubt, false), candidate.tenant,
       CASE WHEN candidate.tenant = 0 THEN 1 ELSE coalesce((SELECT t.weight FROM outbox.tenant t WHERE t.tenant_id = candidate.tenant), 1)
         * CASE WHEN counted IS NULL THEN 1 ELSE -1 END END  -- negative if the tenant has a limit in flight
FROM candidate JOIN outbox.intent i ON i.id = intent_id
LEFT JOIN LATERAL (
  SELECT generation, doubt FROM outbox.generation g WHERE g.intent_id = candidate.intent_id LIMIT 1
) new_key ON candidate.attempt > 2;  -- a new key needs an attempt and an operator's retry before this attempt
