-- $1 operator, $2 reason; then one element a row: $3 intent, $4 the newest attempt number when this was decided.
-- Makes waiting rows due now. They keep their tries, their doubt with its clock, and their lookup. Rows that a worker or
-- another operator holds are not changed.
WITH taken AS (
  DELETE FROM outbox.queue WHERE ctid = ANY (ARRAY(
    SELECT q.ctid FROM outbox.queue q JOIN unnest($3::bigint[], $4::int[]) AS asked (intent_id, attempt) USING (intent_id, attempt)
    FOR UPDATE OF q SKIP LOCKED))
  RETURNING *
), appended AS (
  INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, next_attempt_at, reason)
  SELECT intent_id, attempt + 1, $1::text, 'brought_forward', CASE WHEN lookup THEN 'unknown' ELSE 'pending' END, now(), $2::text
  FROM taken
)
INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via, bytes, tenant, era)
SELECT provider, now(), intent_id, agent_run_id, attempt + 1, tries, first_attempt_at, maybe_applied, lookup, via, bytes, tenant, era FROM taken
RETURNING intent_id;
