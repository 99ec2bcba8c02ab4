-- $1 operator, $2 outcome, $3 status, $4 provider reference, $5 reason; then one element a row: $6 intent,
-- $7 the newest attempt number when this was decided, $8 whether it was queued. The first transaction to take the
-- queue row or to append the next number wins. Rows that a claim or another operator holds are not changed.
WITH asked AS (
  SELECT * FROM unnest($6::bigint[], $7::int[], $8::boolean[]) AS a (intent_id, attempt, queued)
), taken AS (
  DELETE FROM outbox.queue WHERE ctid = ANY (ARRAY(
    SELECT q.ctid FROM outbox.queue q JOIN asked USING (intent_id, attempt) WHERE asked.queued FOR UPDATE OF q SKIP LOCKED))
  RETURNING intent_id
), appended AS (
  INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, provider_ref, reason)
  SELECT intent_id, attempt + 1, $1::text, $2::text, $3::text, nullif($4::text, ''), $5::text
  FROM asked WHERE NOT queued OR intent_id IN (SELECT intent_id FROM taken)
  ORDER BY intent_id  -- two operators insert in the same order, so that they do not deadlock
  ON CONFLICT DO NOTHING RETURNING intent_id
), waiting AS MATERIALIZED (  -- sagas that may wait for the intents, locked in the same order as by workers
  SELECT agent_run_id FROM outbox.saga
  WHERE agent_run_id = ANY (ARRAY(SELECT agent_run_id FROM outbox.intent WHERE id = ANY (ARRAY(SELECT intent_id FROM appended))))
  ORDER BY agent_run_id FOR UPDATE
), moved AS (
  UPDATE outbox.saga SET plan = NULL, moves_at = CASE WHEN passes = 0 THEN now() ELSE moves_at END
  WHERE agent_run_id IN (SELECT agent_run_id FROM waiting)
), decided AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = $1::text
  WHERE kind IN ('outcome_unknown', 'refused_intent') AND intent_id IN (SELECT intent_id FROM appended) AND resolved_at IS NULL
)
SELECT intent_id FROM appended;
