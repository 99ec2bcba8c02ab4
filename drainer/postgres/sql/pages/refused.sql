-- One incident for each gate that is shut because this side was refused, on the oldest row that waits for it; its
-- detail is the gate's name. Resolved once the gate is not shut for that any more.
WITH shut AS MATERIALIZED (
  SELECT reason AS kind, name FROM outbox.provider WHERE state <> 'closed' AND reason = 'credentials_refused'
  UNION ALL
  SELECT reason, name FROM outbox.tool WHERE state <> 'closed' AND reason = ANY (ARRAY['forbidden', 'misconfigured'])
), known AS MATERIALIZED (
  SELECT id, kind, detail FROM outbox.incident
  WHERE kind = ANY (ARRAY['credentials_refused', 'forbidden', 'misconfigured']) AND resolved_at IS NULL
), over AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = 'drainer'
  WHERE id IN (SELECT id FROM known WHERE NOT EXISTS (SELECT FROM shut WHERE shut.kind = known.kind AND shut.name = known.detail))
)
INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
SELECT fresh.kind, i.id, i.agent_run_id, fresh.name
FROM (SELECT * FROM shut WHERE NOT EXISTS (SELECT FROM known WHERE known.kind = shut.kind AND known.detail = shut.name)) fresh
CROSS JOIN LATERAL (
  SELECT r.intent_id FROM outbox.queued_tenants(fresh.name) AS t (tenant) CROSS JOIN LATERAL (
    SELECT q.next_attempt_at, q.intent_id FROM outbox.queue q WHERE q.provider = fresh.name AND q.tenant = t.tenant
    ORDER BY q.next_attempt_at, q.intent_id LIMIT 1) r
  ORDER BY r.next_attempt_at, r.intent_id LIMIT 1) oldest
JOIN outbox.intent i ON i.id = oldest.intent_id
ON CONFLICT (kind, intent_id) DO UPDATE SET detail = excluded.detail, opened_at = now();
