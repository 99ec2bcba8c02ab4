-- $1 incidents, $2 operator, $3 reason, $4 when they were shown (null: not at all). An incident that was opened since
-- then is not changed. A collision, a refused intent and a first replay have no cause that could go away later, so the
-- acknowledgement resolves them. The same holds for a step that was undone twice while its saga did not fail: that saga is
-- not retried.
WITH before AS MATERIALIZED (
  SELECT *, kind IN ('key_collision', 'refused_intent', 'first_replay') OR kind = 'compensation_failed' AND EXISTS (
           SELECT FROM outbox.saga s WHERE s.agent_run_id = i.agent_run_id AND s.state <> 'compensation_failed') AS is_over
  FROM outbox.incident i WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE
), changed AS (
  UPDATE outbox.incident i
  SET acknowledged_at = now(), acknowledged_by = $2::text, reason = $3::text,
      resolved_at = CASE WHEN b.is_over THEN now() END,
      resolved_by = CASE WHEN b.is_over THEN $2::text END
  FROM before b
  WHERE i.id = b.id AND b.acknowledged_at IS NULL AND b.resolved_at IS NULL AND ($4::timestamptz IS NULL OR b.opened_at < $4::timestamptz)
  RETURNING i.id, i.resolved_at
)
SELECT asked.id, coalesce(before.kind, ''),
       CASE WHEN coalesce(changed.resolved_at, before.resolved_at) IS NOT NULL THEN 'resolved'
            WHEN changed.id IS NOT NULL OR before.acknowledged_at IS NOT NULL THEN 'acknowledged'
            ELSE '' END,
       CASE WHEN before.id IS NULL THEN 'there is no such incident'
            WHEN before.resolved_at IS NOT NULL THEN 'it is resolved'
            WHEN before.acknowledged_at IS NOT NULL THEN before.acknowledged_by || ' acknowledged it before'
            WHEN changed.id IS NULL THEN 'it has changed since it was listed; list it again'
            ELSE '' END
FROM (SELECT DISTINCT pg_catalog.unnest($1::bigint[]) AS id) asked
LEFT JOIN before USING (id) LEFT JOIN changed USING (id)
ORDER BY asked.id;
