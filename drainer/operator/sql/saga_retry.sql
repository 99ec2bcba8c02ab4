-- $1 run, $2 operator, $3 reason.
WITH again AS (
  UPDATE outbox.saga SET state = 'begun', epoch = epoch + 1, ended_at = NULL, changed_by = $2::text, reason = $3::text
  WHERE agent_run_id = $1::text AND state = 'compensation_failed'
  RETURNING agent_run_id
), decided AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = $2::text
  WHERE agent_run_id IN (SELECT agent_run_id FROM again) AND resolved_at IS NULL
    AND kind IN ('compensation_failed', 'reversal_window_expired')
)
SELECT FROM again;
