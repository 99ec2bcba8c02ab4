-- $1 run, $2 operator, $3 reason. A step that could not be undone counts as
-- completed again, so that the next pass plans for it anew.
WITH again AS (
  UPDATE outbox.saga SET state = 'begun', epoch = epoch + 1, ended_at = NULL, changed_by = $2::text, reason = $3::text
  WHERE agent_run_id = $1::text AND state = 'compensation_failed'
  RETURNING agent_run_id
), reopened AS (
  INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, reason)
  SELECT intent_id, (SELECT max(attempt) + 1 FROM outbox.attempt a WHERE a.intent_id = s.intent_id), $2::text,
         'undo_retried', 'completed', $3::text
  FROM outbox.status s JOIN again USING (agent_run_id) WHERE s.status = 'compensation_failed'
), decided AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = $2::text
  WHERE agent_run_id IN (SELECT agent_run_id FROM again) AND resolved_at IS NULL
    AND kind IN ('compensation_failed', 'reversal_window_expired')
)
SELECT FROM again;
