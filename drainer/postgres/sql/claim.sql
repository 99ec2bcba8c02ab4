-- $1 worker, $2 provider, $3 limit, $4 and $5 cursor, $6 fallback or '', $7
-- whether this is a probe. Rows and claim change place in one statement. A
-- buried worker and a paused provider claim nothing. A forward row of a run
-- under compensation is stopped instead of claimed, or, where something may
-- have been applied, claimed to be looked up and never to be sent.
WITH gate AS MATERIALIZED (
  SELECT coalesce(bool_and(state = 'closed' OR ($7::boolean AND state = 'half_open' AND prober = $1::uuid))
                  FILTER (WHERE name = $2::text), true) AS own,
         coalesce(bool_and(state = 'closed' AND NOT paused AND NOT $7::boolean)
                  FILTER (WHERE name = $6::text), false) AS fallback,
         coalesce(bool_or(paused) FILTER (WHERE name = $2::text), false) AS paused
  FROM outbox.provider WHERE name IN ($2::text, $6::text)
), taken AS (
  DELETE FROM outbox.queue WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM outbox.queue
    WHERE provider = $2::text AND next_attempt_at <= now()
      AND (next_attempt_at, intent_id) > ($4::timestamptz, $5::bigint)
      AND EXISTS (SELECT FROM outbox.worker WHERE worker_id = $1::uuid)
      AND NOT (SELECT paused FROM gate)
      -- Who serves a row: what a fallback may have applied stays with it, and it
      -- takes over only what nobody may have. A row in doubt is maybe_applied, or
      -- to be looked up; a probe is for the own provider alone.
      --
      --   via    own gate   in doubt   served by
      --   null   passes     either     its own provider
      --   null   shut       no         the fallback, while that one's gate is closed
      --   null   shut       yes        nobody: it waits for its own provider
      --   set    either     either     via; the present fallback only while its gate is closed
      AND CASE
            WHEN via IS NOT NULL THEN NOT $7::boolean AND (via <> $6::text OR (SELECT fallback FROM gate))
            ELSE (SELECT own FROM gate) OR ((SELECT fallback FROM gate) AND NOT maybe_applied AND NOT lookup) END
    ORDER BY next_attempt_at, intent_id LIMIT $3::int
    FOR UPDATE SKIP LOCKED))
  RETURNING *
), candidate AS (
  SELECT t.intent_id, t.next_attempt_at, t.attempt + 1 AS attempt, t.tries + 1 AS tries, t.first_attempt_at, t.maybe_applied, t.lookup AS asks,
         coalesce(t.via, CASE WHEN NOT (SELECT own FROM gate) THEN $6::text END) AS via,
         i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.payload, i.headers, i.created_at,
         i.compensates, i.compensates IS NULL AND NOT t.lookup AND s.agent_run_id IS NOT NULL AS closed
  FROM taken t JOIN outbox.intent i ON i.id = t.intent_id LEFT JOIN outbox.saga s USING (agent_run_id)
), claimed AS (
  INSERT INTO outbox.claim (worker_id, provider, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
  SELECT $1::uuid, $2::text, array_agg(intent_id), array_agg(attempt), array_agg(tries),
         array_agg(first_attempt_at), array_agg(maybe_applied), array_agg(asks OR closed), array_agg(via)
  FROM candidate WHERE NOT closed OR maybe_applied HAVING count(*) > 0
  RETURNING claim_id
), stopped AS (
  INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
  SELECT intent_id, attempt, 'saga', 'cancelled', 'cancelled' FROM candidate WHERE closed AND NOT maybe_applied
)
SELECT claim_id, intent_id, attempt, tries, first_attempt_at,
       extract(epoch FROM now() - first_attempt_at)::float8, extract(epoch FROM now() - created_at)::float8,
       maybe_applied, asks, closed, coalesce(via, ''), compensates, agent_run_id, step_id, tool_name, business_scope, payload, headers,
       -- only a lookup needs what an earlier attempt brought
       CASE WHEN asks THEN (SELECT provider_ref FROM outbox.attempt a
         WHERE a.intent_id = candidate.intent_id AND provider_ref IS NOT NULL ORDER BY a.attempt DESC LIMIT 1) END,
       next_attempt_at
FROM claimed, candidate WHERE NOT closed OR maybe_applied
ORDER BY next_attempt_at, intent_id;
