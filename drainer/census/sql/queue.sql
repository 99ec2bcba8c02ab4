-- $1 limit of the counts of each provider's due rows and of its rows that are not yet due, $2 the configured providers,
-- $3 how many other providers are looked at. Rows of an operation that is shut wait under the operation's name.
SELECT p.name, waiting.rows, due.rows, coalesce(extract(epoch FROM now() - oldest.next_attempt_at), 0)::float8
FROM (
  SELECT pg_catalog.unnest($2::text[]) COLLATE "C" AS name UNION
  (SELECT name FROM outbox.tool WHERE state <> 'closed' LIMIT 1000) UNION
  -- a loose index scan: one look a provider, however many rows it has
  (WITH RECURSIVE queued AS (
    (SELECT provider FROM outbox.queue ORDER BY provider LIMIT 1)
    UNION ALL
    SELECT (SELECT q.provider FROM outbox.queue q WHERE q.provider > queued.provider ORDER BY q.provider LIMIT 1)
    FROM queued WHERE queued.provider IS NOT NULL)
  SELECT provider FROM queued WHERE provider IS NOT NULL LIMIT $3::int)
) p
CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
  SELECT FROM outbox.queued_tenants(p.name) AS t (tenant) CROSS JOIN LATERAL (
    SELECT FROM outbox.queue WHERE provider = p.name AND tenant = t.tenant AND next_attempt_at > now() LIMIT $1::int) r
  LIMIT $1::int) q) waiting
CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
  SELECT FROM outbox.queued_tenants(p.name) AS t (tenant) CROSS JOIN LATERAL (
    SELECT FROM outbox.queue WHERE provider = p.name AND tenant = t.tenant AND next_attempt_at <= now() LIMIT $1::int) r
  LIMIT $1::int) q) due
LEFT JOIN LATERAL (
  SELECT r.next_attempt_at FROM outbox.queued_tenants(p.name) AS t (tenant) CROSS JOIN LATERAL (
    SELECT next_attempt_at FROM outbox.queue WHERE provider = p.name AND tenant = t.tenant AND next_attempt_at <= now()
    ORDER BY next_attempt_at LIMIT 1) r
  ORDER BY 1 LIMIT 1) oldest ON true;
