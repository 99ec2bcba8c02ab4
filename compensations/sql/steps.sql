-- $1 run.
SELECT i.id, i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.payload,
       done.response, coalesce(done.provider_ref, ''), coalesce(done.served_by, ''),
       s.status, coalesce(extract(epoch FROM now() - done.finished_at), 0)::float8,
       coalesce(undo.status, ''), undo.finished_at IS NOT NULL
FROM outbox.intent i
JOIN outbox.status s ON s.intent_id = i.id
LEFT JOIN LATERAL (
  -- the attempt that had the effect, or the operator who said so
  SELECT response, provider_ref, served_by, finished_at FROM outbox.attempt a
  WHERE a.intent_id = i.id AND a.status = 'completed' AND a.outcome IN ('completed', 'resolved')
  ORDER BY a.attempt DESC LIMIT 1
) done ON true
LEFT JOIN outbox.intent u ON u.compensates = i.id
LEFT JOIN outbox.status undo ON undo.intent_id = u.id
WHERE i.agent_run_id = $1::text AND i.compensates IS NULL;
