-- $1 the providers that this process serves, $2 seconds that a row, due or claimed, may wait for a provider that no
-- worker serves. Claimed rows count too, because only workers of the provider take over a dead worker's claim.
-- Opens one incident for each such provider, on its oldest row, and resolves it once no row has waited so long.
WITH RECURSIVE queued AS (
  -- a loose index scan: one look a provider, however many rows it has
  (SELECT provider FROM outbox.queue ORDER BY provider LIMIT 1)
  UNION ALL
  -- skips lanes in which rows are parked for an operation: such a lane has a slash in its name
  SELECT (SELECT q.provider FROM outbox.queue q WHERE q.provider > queued.provider
            AND q.provider >= CASE WHEN strpos(queued.provider, '/'::text) > 0 THEN split_part(queued.provider, '/'::text, 1) || '0' ELSE queued.provider END
          ORDER BY q.provider LIMIT 1)
  FROM queued WHERE queued.provider IS NOT NULL
), served AS MATERIALIZED (
  SELECT pg_catalog.unnest($1::text[]) AS name UNION SELECT pg_catalog.unnest(providers) FROM outbox.worker
), stuck AS MATERIALIZED (
  SELECT provider, min(intent_id) AS intent_id
  FROM (
    SELECT queued.provider, oldest.intent_id
    FROM queued CROSS JOIN LATERAL (
      SELECT r.intent_id FROM outbox.queued_tenants(queued.provider) AS t (tenant) CROSS JOIN LATERAL (
        SELECT q.next_attempt_at, q.intent_id FROM outbox.queue q
        WHERE q.provider = queued.provider AND q.tenant = t.tenant AND q.next_attempt_at <= now() - make_interval(secs => $2::float8)
        ORDER BY q.next_attempt_at, q.intent_id LIMIT 1) r
      ORDER BY r.next_attempt_at, r.intent_id LIMIT 1) oldest
    WHERE queued.provider NOT IN (SELECT name FROM served) AND strpos(queued.provider, '/'::text) = 0
    UNION ALL
    SELECT c.provider, r.intent_id
    FROM outbox.claim c CROSS JOIN LATERAL unnest(c.intent_ids, c.attempts) AS r (intent_id, attempt)
    WHERE c.provider NOT IN (SELECT name FROM served) AND c.claimed_at <= now() - make_interval(secs => $2::float8)
      -- a living worker settles its own claims, even if a reload removed the provider
      AND NOT EXISTS (SELECT FROM outbox.worker w WHERE w.worker_id = c.worker_id)
      -- a claim lists a settled row until its last row is settled
      AND (SELECT a.attempt FROM outbox.attempt a WHERE a.intent_id = r.intent_id AND a.attempt = r.attempt) IS NULL
  ) waits
  GROUP BY provider
), known AS MATERIALIZED (
  SELECT i.id, t.provider FROM outbox.incident i LEFT JOIN outbox.intent t ON t.id = i.intent_id
  WHERE i.kind = 'unconfigured_provider' AND i.resolved_at IS NULL
), over AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = 'drainer'
  WHERE id IN (SELECT id FROM known WHERE NOT EXISTS (SELECT FROM stuck WHERE stuck.provider = known.provider))
)
INSERT INTO outbox.incident (kind, intent_id, agent_run_id)
SELECT 'unconfigured_provider', i.id, i.agent_run_id
FROM stuck JOIN outbox.intent i ON i.id = stuck.intent_id
WHERE NOT EXISTS (SELECT FROM known WHERE known.provider = stuck.provider)
ON CONFLICT (kind, intent_id) DO UPDATE SET opened_at = now();
