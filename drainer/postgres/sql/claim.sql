-- $1 worker, $2 provider, $3 limit, $4 and $5 cursor. Rows and claim change
-- place in one statement. A buried worker and a paused provider claim nothing.
-- A forward row of a run under compensation is stopped instead of claimed.
WITH taken AS (
  DELETE FROM outbox.queue WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM outbox.queue
    WHERE provider = $2::text AND next_attempt_at <= now()
      AND (next_attempt_at, intent_id) > ($4::timestamptz, $5::bigint)
      AND EXISTS (SELECT FROM outbox.worker WHERE worker_id = $1::uuid)
      AND NOT EXISTS (SELECT FROM outbox.provider WHERE name = $2::text AND paused)
    ORDER BY next_attempt_at, intent_id LIMIT $3::int
    FOR UPDATE SKIP LOCKED))
  RETURNING *
), candidate AS (
  SELECT t.*, i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.payload, i.headers, i.created_at,
         i.compensates IS NULL AND NOT t.lookup AND s.agent_run_id IS NOT NULL AS stopped
  FROM taken t JOIN outbox.intent i ON i.id = t.intent_id LEFT JOIN outbox.saga s USING (agent_run_id)
), claimed AS (
  INSERT INTO outbox.claim (worker_id, provider, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups)
  SELECT $1::uuid, $2::text, array_agg(intent_id), array_agg(attempt + 1), array_agg(tries + 1),
         array_agg(first_attempt_at), array_agg(maybe_applied), array_agg(lookup)
  FROM candidate WHERE NOT stopped HAVING count(*) > 0
  RETURNING claim_id
), stopped AS (
  INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
  SELECT intent_id, attempt + 1, 'saga', 'cancelled', CASE WHEN maybe_applied THEN 'unknown' ELSE 'cancelled' END
  FROM candidate WHERE stopped
)
SELECT claim_id, intent_id, attempt + 1, tries + 1, first_attempt_at,
       extract(epoch FROM now() - first_attempt_at)::float8, extract(epoch FROM now() - created_at)::float8,
       maybe_applied, agent_run_id, step_id, tool_name, business_scope, payload, headers, next_attempt_at
FROM claimed, candidate WHERE NOT stopped
ORDER BY next_attempt_at, intent_id;
