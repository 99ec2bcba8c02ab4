-- $1 run, $2 operator, $3 reason.
WITH again AS MATERIALIZED (
  SELECT $1::text AS agent_run_id WHERE outbox.operate_run($1::text, 'retry_saga', $2::text, $3::text)
), decided AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = $2::text
  WHERE agent_run_id IN (SELECT agent_run_id FROM again) AND resolved_at IS NULL
    AND kind IN ('compensation_failed', 'reversal_window_expired', 'saga_stalled')
)
SELECT FROM again;
