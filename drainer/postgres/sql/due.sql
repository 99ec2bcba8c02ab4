-- $1 providers, $2 where counting stops.
SELECT p.name, due.rows
FROM pg_catalog.unnest($1::text[]) AS p (name)
CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
  SELECT FROM outbox.queued_tenants(p.name) AS t (tenant) CROSS JOIN LATERAL (
    SELECT FROM outbox.queue WHERE provider = p.name AND tenant = t.tenant AND next_attempt_at <= now() LIMIT $2::int) r
  LIMIT $2::int) q) due;
