-- $1 limit, $2 for how many seconds, $3 only these runs (null: any), $4 whether to take sagas that an earlier pass
-- left taken, or only others. Takes due sagas, so that no other process does. The begin of a pass is committed before
-- the pass does anything: after three passes that did not end, the saga is left to a human.
WITH due AS MATERIALIZED (
  SELECT agent_run_id, cause, passes FROM outbox.saga
  WHERE state = 'begun' AND moves_at <= now() AND (passes > 0) = $4::boolean AND (NOT $4::boolean OR coalesce(leased_until <= now(), true))
    AND ($3::text[] IS NULL OR agent_run_id = ANY ($3::text[]))
  ORDER BY moves_at LIMIT $1::int FOR UPDATE SKIP LOCKED
), stalled AS (
  UPDATE outbox.saga s SET state = 'compensation_failed', ended_at = now()
  WHERE s.agent_run_id = ANY (ARRAY(SELECT agent_run_id FROM due WHERE passes >= 3))
  RETURNING s.agent_run_id, s.cause
), told AS (
  INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
  SELECT 'saga_stalled', coalesce(cause, (SELECT id FROM outbox.intent i WHERE i.agent_run_id = stalled.agent_run_id LIMIT 1), 0),
         agent_run_id, 'passes_died'
  FROM stalled
  ON CONFLICT (kind, intent_id) DO UPDATE SET detail = excluded.detail, opened_at = now()
  RETURNING intent_id
), taken AS (
  UPDATE outbox.saga s SET passes = s.passes + 1, leased_until = now() + make_interval(secs => $2::float8)
  WHERE s.agent_run_id = ANY (ARRAY(SELECT agent_run_id FROM due WHERE passes < 3))
  RETURNING s.agent_run_id, s.xmin::text AS version, s.passes, s.plan IS NOT NULL AS planned
)
SELECT agent_run_id, version, passes, planned,
       CASE WHEN planned THEN 0 ELSE (SELECT count(*)::int FROM (SELECT FROM outbox.intent i WHERE i.agent_run_id = taken.agent_run_id LIMIT 1000) few) END, 0::bigint
FROM taken
UNION ALL SELECT '', '', 0, false, 0, intent_id FROM told;
