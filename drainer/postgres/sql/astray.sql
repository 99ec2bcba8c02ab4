-- $1 intent, whose effect came late. If its run had gone back by then, that did
-- not come to nothing, and somebody must know.
WITH astray AS (
  SELECT agent_run_id, state FROM outbox.saga
  WHERE agent_run_id = (SELECT agent_run_id FROM outbox.intent WHERE id = $1::bigint)
    AND state IN ('compensated', 'compensation_failed', 'resolved')
), not_net_zero AS (
  UPDATE outbox.saga SET state = 'compensation_failed'
  WHERE agent_run_id IN (SELECT agent_run_id FROM astray WHERE state <> 'compensation_failed')
)
INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
SELECT 'compensation_failed', $1, agent_run_id, 'late_effect' FROM astray
ON CONFLICT (kind, intent_id) DO UPDATE SET detail = excluded.detail, opened_at = now();
