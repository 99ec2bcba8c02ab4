-- $1 forward intent, $2 why, $3 the incident's kind. The saga, the step and the
-- incident change together: nothing is left that nobody is told of.
WITH noted AS (
  INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, error)
  SELECT $1::bigint, max(attempt) + 1, 'saga', 'not_undone', 'compensation_failed', $2::text
  FROM outbox.attempt WHERE intent_id = $1::bigint
), ended AS (
  UPDATE outbox.saga SET state = 'compensation_failed', ended_at = now()
  WHERE agent_run_id = (SELECT agent_run_id FROM outbox.intent WHERE id = $1::bigint)
)
INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
SELECT $3::text, id, agent_run_id, $2::text FROM outbox.intent WHERE id = $1::bigint
ON CONFLICT (kind, intent_id) DO UPDATE
SET detail = excluded.detail, opened_at = now();
