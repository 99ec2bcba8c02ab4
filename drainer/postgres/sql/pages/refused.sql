-- One incident for each gate that is shut because this side was refused, on the oldest row that waits for it; where a
-- fallback serves them all, or the gate is that of a fallback, on an intent that was refused. An intent has one
-- incident of a kind. Its detail is the gate's name. Resolved once the gate is not shut for that any more.
WITH shut AS MATERIALIZED (
  SELECT reason AS kind, name, shut_at FROM outbox.provider WHERE state <> 'closed' AND reason = 'credentials_refused'
  UNION ALL
  SELECT reason, name, shut_at FROM outbox.tool WHERE state <> 'closed' AND reason = ANY (ARRAY['forbidden', 'misconfigured'])
), known AS MATERIALIZED (
  SELECT id, kind, detail FROM outbox.incident
  WHERE kind = ANY (ARRAY['credentials_refused', 'forbidden', 'misconfigured']) AND resolved_at IS NULL
), over AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = 'drainer'
  WHERE id IN (SELECT id FROM known WHERE NOT EXISTS (SELECT FROM shut WHERE shut.kind = known.kind AND shut.name = known.detail))
)
INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
SELECT DISTINCT ON (fresh.kind, i.id) fresh.kind, i.id, i.agent_run_id, fresh.name
FROM (SELECT * FROM shut WHERE NOT EXISTS (SELECT FROM known WHERE known.kind = shut.kind AND known.detail = shut.name)) fresh
LEFT JOIN LATERAL (
  SELECT r.intent_id FROM outbox.queued_tenants(fresh.name) AS t (tenant) CROSS JOIN LATERAL (
    SELECT q.next_attempt_at, q.intent_id FROM outbox.queue q WHERE q.provider = fresh.name AND q.tenant = t.tenant
    ORDER BY q.next_attempt_at, q.intent_id LIMIT 1) r
  ORDER BY r.next_attempt_at, r.intent_id LIMIT 1) oldest ON true
LEFT JOIN LATERAL (
  SELECT a.intent_id FROM outbox.attempt a JOIN outbox.intent t ON t.id = a.intent_id
  WHERE oldest.intent_id IS NULL AND a.outcome = fresh.kind AND a.finished_at >= fresh.shut_at - interval '1 minute'
    AND fresh.name = coalesce(a.served_by, split_part(t.tool_name, '/'::text, 1))
                     || CASE WHEN strpos(fresh.name, '/'::text) > 0 THEN '/' || split_part(t.tool_name, '/'::text, 2) ELSE '' END
    AND NOT EXISTS (SELECT FROM outbox.incident o WHERE o.kind = fresh.kind AND o.intent_id = a.intent_id AND o.resolved_at IS NULL)
  LIMIT 1) refused ON true  -- the first one that is found: to sort them would read all of them
JOIN outbox.intent i ON i.id = coalesce(oldest.intent_id, refused.intent_id)
ORDER BY fresh.kind, i.id, oldest.intent_id, fresh.name  -- who waits comes first
ON CONFLICT (kind, intent_id) DO UPDATE SET detail = excluded.detail, opened_at = now();
