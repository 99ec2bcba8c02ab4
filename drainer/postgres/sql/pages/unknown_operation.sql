-- $1 seconds that a row may wait for a worker that knows its operation, $2 how many of these incidents may be
-- unresolved. Daemons of its provider have parked such a row in a lane with the operation's name. Opens one incident for
-- each such lane, on its oldest row, and resolves it once a worker knows the operation or no row has waited so long.
-- '0' is the character after '/'.
WITH RECURSIVE lane AS (
  -- a loose index scan: one look a lane, however many rows it has
  SELECT p.name, (SELECT q.provider FROM outbox.queue q
                  WHERE q.provider >= p.name || '/' AND q.provider < p.name || '0' ORDER BY q.provider LIMIT 1) AS lane
  FROM outbox.provider p
  UNION ALL
  SELECT name, (SELECT q.provider FROM outbox.queue q
                WHERE q.provider > lane.lane AND q.provider < name || '0' ORDER BY q.provider LIMIT 1)
  FROM lane WHERE lane.lane IS NOT NULL
), known AS MATERIALIZED (
  SELECT i.id, t.provider || '/' || substr(t.tool_name, length(t.provider) + 2) AS lane
  FROM outbox.incident i LEFT JOIN outbox.intent t ON t.id = i.intent_id
  WHERE i.kind = 'unknown_operation' AND i.resolved_at IS NULL
), looked_at AS MATERIALIZED (
  SELECT lane FROM (SELECT lane FROM lane WHERE lane IS NOT NULL LIMIT 1000) first UNION SELECT lane FROM known WHERE lane IS NOT NULL
), stuck AS MATERIALIZED (
  SELECT l.lane, oldest.intent_id
  FROM looked_at l CROSS JOIN LATERAL (
    SELECT r.intent_id FROM outbox.queued_tenants(l.lane) AS t (tenant) CROSS JOIN LATERAL (
      SELECT q.next_attempt_at, q.intent_id FROM outbox.queue q
      WHERE q.provider = l.lane AND q.tenant = t.tenant AND q.next_attempt_at <= now() - make_interval(secs => $1::float8)
      ORDER BY q.next_attempt_at, q.intent_id LIMIT 1) r
    ORDER BY r.next_attempt_at, r.intent_id LIMIT 1) oldest
  WHERE NOT EXISTS (SELECT FROM outbox.worker w WHERE l.lane = ANY (w.tools))
), over AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = 'drainer'
  WHERE id IN (SELECT id FROM known WHERE NOT EXISTS (SELECT FROM stuck WHERE stuck.lane = known.lane))
)
INSERT INTO outbox.incident (kind, intent_id, agent_run_id)
SELECT 'unknown_operation', i.id, i.agent_run_id
FROM (SELECT * FROM stuck WHERE NOT EXISTS (SELECT FROM known WHERE known.lane = stuck.lane)
      ORDER BY intent_id LIMIT greatest(0, $2::bigint - (SELECT count(*) FROM known))) fresh
JOIN outbox.intent i ON i.id = fresh.intent_id
ON CONFLICT (kind, intent_id) DO UPDATE SET opened_at = now();
