-- $1 run, $2 operator, $3 reason. Cancels the undos that wait, except those that may have been applied.
WITH resolved AS MATERIALIZED (
  SELECT $1::text AS agent_run_id WHERE outbox.operate_run($1::text, 'resolve_saga', $2::text, $3::text)
), withdrawn AS (
  DELETE FROM outbox.queue q USING outbox.intent u, resolved
  WHERE u.agent_run_id = resolved.agent_run_id AND u.compensates IS NOT NULL AND q.intent_id = u.id AND NOT q.maybe_applied
    AND q.era >= (SELECT before_era FROM outbox.in_doubt())
  RETURNING q.intent_id, q.attempt
), noted AS (
  INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, reason)
  SELECT intent_id, attempt + 1, $2::text, 'cancelled', 'cancelled', $3::text FROM withdrawn
), decided AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = $2::text
  WHERE agent_run_id IN (SELECT agent_run_id FROM resolved) AND resolved_at IS NULL
    AND kind IN ('compensation_failed', 'reversal_window_expired', 'saga_stalled')
)
SELECT FROM resolved;
