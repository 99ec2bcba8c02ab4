-- $1 run.
SELECT i.id, i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.payload,
       done.response, coalesce(done.provider_ref, ''), coalesce(done.served_by, doubt.served_by, ''),
       s.status, coalesce(extract(epoch FROM now() - effect.earliest), 0)::float8,
       coalesce(undo.status, ''), undo.finished_at IS NOT NULL
FROM outbox.intent i
JOIN outbox.status s ON s.intent_id = i.id
LEFT JOIN LATERAL (
  -- the attempt that had the effect, or the operator who said so
  SELECT response, provider_ref, served_by, outcome FROM outbox.attempt a
  WHERE a.intent_id = i.id AND a.status = 'completed' AND a.outcome IN ('completed', 'resolved')
  ORDER BY a.attempt DESC LIMIT 1
) done ON true
LEFT JOIN LATERAL (
  -- what a human or a lookup found to be completed was done by whoever left the doubt
  SELECT served_by FROM outbox.attempt a
  WHERE a.intent_id = i.id AND NOT a.lookup AND a.outcome IN ('ambiguous', 'lost', 'in_flight')
  ORDER BY a.attempt DESC LIMIT 1
) doubt ON done.outcome = 'resolved'
LEFT JOIN LATERAL (
  -- when the effect can have happened at the earliest: the window to undo it counts from there
  SELECT min(started_at) AS earliest FROM outbox.attempt a
  WHERE a.intent_id = i.id AND NOT a.lookup AND a.outcome IN ('completed', 'ambiguous', 'lost', 'in_flight')
) effect ON true
LEFT JOIN outbox.intent u ON u.compensates = i.id
LEFT JOIN outbox.status undo ON undo.intent_id = u.id
WHERE i.agent_run_id = $1::text AND i.compensates IS NULL;
