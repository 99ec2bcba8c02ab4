-- $1 where counting stops.
SELECT p.name, pending.rows, due.rows, coalesce(claimed.rows, 0)::bigint,
       coalesce(extract(epoch FROM now() - oldest.next_attempt_at), 0)::float8,
       coalesce(extract(epoch FROM now() - claimed.oldest), 0)::float8
FROM (
  SELECT name FROM outbox.provider UNION SELECT provider FROM (
    -- a loose index scan: one look a provider, however many rows it has
    WITH RECURSIVE queued AS (
      (SELECT provider FROM outbox.queue ORDER BY provider LIMIT 1)
      UNION ALL
      SELECT (SELECT q.provider FROM outbox.queue q WHERE q.provider > queued.provider ORDER BY q.provider LIMIT 1)
      FROM queued WHERE queued.provider IS NOT NULL)
    SELECT provider FROM queued WHERE provider IS NOT NULL) q
) p
CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
  SELECT FROM outbox.queue WHERE provider = p.name LIMIT $1::int) q) pending
CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
  SELECT FROM outbox.queue WHERE provider = p.name AND next_attempt_at <= now() LIMIT $1::int) q) due
LEFT JOIN LATERAL (
  SELECT next_attempt_at FROM outbox.queue WHERE provider = p.name AND next_attempt_at <= now()
  ORDER BY next_attempt_at LIMIT 1) oldest ON true
LEFT JOIN (
  SELECT provider, sum(cardinality(intent_ids)) AS rows, min(claimed_at) AS oldest
  FROM outbox.claim GROUP BY provider) claimed ON claimed.provider = p.name;
