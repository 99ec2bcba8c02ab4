-- $1 the intent whose effect was proven late, $2 whether its tool has effects. A saga under way makes its plan again, and
-- records a late undo on its step. If the saga has ended, an incident tells a human: an effect is not undone, or an undo
-- has acted for a step that counts as not undone or as undone by hand. The latter is told while the saga is under way, too.
-- An operator who calls a step undone has held its undo first, as late evidence does.
WITH held AS MATERIALIZED (
  SELECT agent_run_id, state IN ('compensated', 'compensation_failed', 'resolved') AND $2::boolean AS has_ended,
         $2::boolean AND EXISTS (SELECT FROM outbox.standing s JOIN outbox.intent u ON u.compensates = s.intent_id
                                 WHERE u.id = $1::bigint AND s.status = 'compensated') AS is_undone_twice
  FROM outbox.saga
  WHERE agent_run_id = (SELECT agent_run_id FROM outbox.intent WHERE id = $1::bigint)
  FOR UPDATE
), moved AS (
  UPDATE outbox.saga s
  SET state = CASE WHEN has_ended THEN 'compensation_failed' ELSE s.state END, plan = NULL,
      moves_at = CASE WHEN s.passes = 0 THEN now() ELSE s.moves_at END
  FROM held WHERE s.agent_run_id = held.agent_run_id
)
INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
SELECT 'compensation_failed', (SELECT coalesce(compensates, id) FROM outbox.intent WHERE id = $1::bigint), agent_run_id, 'late_effect'
FROM held WHERE has_ended OR is_undone_twice
ON CONFLICT (kind, intent_id) DO UPDATE SET detail = excluded.detail, opened_at = now();
