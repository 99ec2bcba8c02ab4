-- $1 worker, then one element a lane: $2 the provider whose rows, each once, $3
-- limit, $4 and $5 cursor, $6 server that is to serve them, $7 the provider's
-- fallback or ''; $8 for how many seconds if this is a probe, of one lane, else 0;
-- and $9 for each lane how many bytes its rows may have: each row also counts the 512
-- of its other columns, and the first row is taken whatever it has; $10 whether a lane may
-- repeat an effect; $11 and $12 the history that this process knows and how far it saw it. Rows and claims change place in one statement. A declared dead worker and a paused
-- provider claim nothing. A forward row of a run under compensation is stopped
-- instead of claimed, or, where something may have been applied, claimed to be
-- looked up and never to be sent.
--
--   who takes a row      | may have been applied, or is looked up | nobody may have applied it
--   via is null          | its provider                           | its provider; while that one's breaker
--                        |                                        | is open, its fallback
--   via is the fallback  | the fallback                           | (a row keeps via only with its doubt)
--   via is another       | its provider's lane, which hands it to the one named, if that is configured
--
-- claim.go renders this for probes, which try a provider whose breaker opened, or an operation: then $2 and
-- $6 are the lane where its rows are parked; and for all other claims, of which Postgres would begin the probe's parts
-- each time. A probe takes the row that failed least, of the first that are due.
WITH history AS MATERIALIZED (  -- none where the database may have lost commits since: nothing is claimed until a heartbeat has looked
  SELECT accepted_by IS NOT NULL AS accepted, doubted_until
  FROM (SELECT *, tableoid FROM outbox.history ORDER BY id DESC LIMIT 1) h
  WHERE id = $11::int AND tableoid = table_oid AND (lsn >= $12::pg_lsn) IS NOT FALSE
    AND CASE WHEN timeline IS NULL THEN true ELSE timeline = pg_catalog.concat('x'::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END
), {{if .Probe}}probe AS MATERIALIZED (
  SELECT 1 FROM outbox.{{if .Operation}}tool{{else}}provider{{end}}
  WHERE name = ($6::text[])[1]{{if not .Operation}} AND NOT paused{{end}}
    AND ((state <> 'closed' AND open_until <= clock_timestamp())
      OR (state = 'half_open' AND NOT EXISTS (SELECT FROM outbox.worker w WHERE w.worker_id = prober)))
  FOR UPDATE SKIP LOCKED  -- one prober in the fleet, and nobody waits for it
), {{end}}lane AS MATERIALIZED (
  SELECT l.*, doubted_until, coalesce(own.state = 'closed', true) AS closed
  FROM unnest($2::text[], $3::int[], $4::timestamptz[], $5::bigint[], $6::text[], $7::text[], $9::bigint[], $10::boolean[])
    AS l (provider, room, after_time, after_intent, server, fallback, bytes, once)
  JOIN history ON accepted OR NOT once  -- one row, or none
  LEFT JOIN outbox.provider own ON own.name = {{if .Operation}}split_part(l.provider, '/'::text, 1){{else}}l.provider{{end}}
  {{if not .Probe}}LEFT JOIN outbox.provider upstream ON upstream.name = l.server
  {{end}}WHERE NOT coalesce(own.paused, false)
    AND {{if .Operation}}coalesce(own.state = 'closed', true) AND {{end}}{{if .Probe}}EXISTS (SELECT FROM probe){{else}}coalesce(upstream.state = 'closed' AND NOT upstream.paused, true){{end}}
    AND EXISTS (SELECT FROM outbox.worker WHERE worker_id = $1::uuid)
), taken AS (
  DELETE FROM outbox.queue WHERE ctid = ANY (ARRAY(
    SELECT due.ctid FROM lane l CROSS JOIN LATERAL (
      SELECT ctid FROM (SELECT ctid, bytes, sum(512 + bytes) OVER (ROWS UNBOUNDED PRECEDING) AS filled FROM (SELECT * FROM (
        SELECT ctid, bytes{{if .Probe}}, tries, next_attempt_at, intent_id{{end}} FROM outbox.queue
        WHERE provider = l.provider AND next_attempt_at <= now()
          AND (next_attempt_at, intent_id) > (l.after_time, l.after_intent)
          AND CASE WHEN l.server = l.provider THEN via IS NULL OR (via <> l.fallback AND $8::float8 = 0::float8)
                   ELSE via = l.server OR (via IS NULL AND NOT maybe_applied AND NOT lookup AND NOT l.closed AND next_attempt_at > l.doubted_until
                        -- an undo goes to whoever had the effect, or to nobody
                        AND (SELECT compensates IS NULL FROM outbox.intent WHERE id = intent_id)) END
        ORDER BY next_attempt_at, intent_id
        LIMIT {{if .Probe}}100{{else}}12000  -- for the planner, who cannot know l.room: which is never that much{{end}}
        FOR UPDATE SKIP LOCKED) few{{if .Probe}} ORDER BY tries, next_attempt_at, intent_id{{end}}
      LIMIT l.room) roomy) summed  -- below the sum, which reads one row ahead: no row is locked that is not counted
      WHERE filled - bytes - 512 < l.bytes) due))
  RETURNING pg_catalog.array_position($2::text[], provider) AS n,
            intent_id, agent_run_id, next_attempt_at, attempt, tries, first_attempt_at, maybe_applied, lookup, via,
            next_attempt_at <= (SELECT doubted_until FROM history) AS doubted
), candidate AS (
  SELECT t.n, t.intent_id, t.next_attempt_at, t.attempt + 1 AS attempt, t.tries + 1 AS tries,
         CASE WHEN t.doubted THEN least(t.first_attempt_at, (SELECT created_at FROM outbox.intent WHERE id = t.intent_id)) ELSE t.first_attempt_at END AS first_attempt_at,
         t.maybe_applied OR t.doubted AS maybe_applied, t.lookup OR t.doubted AS asks, coalesce(t.via, nullif(($6::text[])[t.n], ($2::text[])[t.n])) AS via,
         s.agent_run_id IS NOT NULL AND NOT t.lookup
           -- no EXISTS: that could be planned as one look at every undo there is
           AND (SELECT compensates IS NULL FROM outbox.intent WHERE id = t.intent_id) AS closed,
         s.agent_run_id IS NOT NULL AS in_saga
  FROM taken t
  -- LIMIT keeps this a look a row: where there were no sagas when it was planned, a join would read all that came since
  LEFT JOIN LATERAL (SELECT agent_run_id FROM outbox.saga WHERE agent_run_id = t.agent_run_id LIMIT 1) s ON true
), claimed AS (
  INSERT INTO outbox.claim (worker_id, provider, server, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
  SELECT $1::uuid, {{if .Operation}}split_part(($2::text[])[n], '/'::text, 1), split_part(($6::text[])[n], '/'::text, 1){{else}}($2::text[])[n], ($6::text[])[n]{{end}}, pg_catalog.array_agg(intent_id), pg_catalog.array_agg(attempt), pg_catalog.array_agg(tries),
         pg_catalog.array_agg(first_attempt_at), pg_catalog.array_agg(maybe_applied), pg_catalog.array_agg(asks OR closed), pg_catalog.array_agg(via)
  FROM candidate WHERE NOT closed OR maybe_applied GROUP BY n
  RETURNING claim_id, provider
){{if .Probe}}, probed AS (
  UPDATE outbox.{{if .Operation}}tool{{else}}provider{{end}}
  SET state = 'half_open', prober = $1::uuid, open_until = clock_timestamp() + make_interval(secs => $8::float8)
  WHERE name = ($6::text[])[1] AND EXISTS (SELECT FROM claimed)
){{end}}, stopped AS (
  INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
  SELECT intent_id, attempt, 'saga', 'cancelled', 'cancelled' FROM candidate WHERE closed AND NOT maybe_applied
)
-- A stopped row has no claim; it is returned for the cursor's sake. The clock is asked,
-- for settling may have taken a part of this transaction's time. Payloads are
-- read here: carrying them through all of the above, or sorting them, takes longer.
SELECT n, CASE WHEN closed AND NOT maybe_applied THEN 0 ELSE
         {{if .Probe}}(SELECT claim_id FROM claimed){{else}}(SELECT pg_catalog.array_agg(claim_id ORDER BY lane)
          FROM pg_catalog.unnest($2::text[]) WITH ORDINALITY AS l (provider, lane) LEFT JOIN claimed USING (provider))[n]{{end}} END,
       intent_id, attempt, tries, first_attempt_at, clock_timestamp(), greatest(i.created_at, i.not_before), next_attempt_at,
       maybe_applied, asks, closed, in_saga, coalesce(via, ''), i.compensates,
       i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.payload, i.headers,
       -- only a lookup needs what an earlier attempt brought
       CASE WHEN asks THEN (SELECT provider_ref FROM outbox.attempt a
         WHERE a.intent_id = candidate.intent_id AND provider_ref IS NOT NULL ORDER BY a.attempt DESC LIMIT 1) END,
       coalesce(i.namespace, ''), coalesce(new_key.generation, 0), coalesce(new_key.doubt, false)
FROM candidate JOIN outbox.intent i ON i.id = intent_id
LEFT JOIN LATERAL (
  SELECT generation, doubt FROM outbox.generation g WHERE g.intent_id = candidate.intent_id LIMIT 1
) new_key ON candidate.attempt > 2;  -- an attempt and an operator came before it
