-- $1 providers that are shut, $2 providers whose rows wait until the database's history is accepted, $3 the limit of the
-- count.
SELECT p.name, due.rows
FROM (
  SELECT pg_catalog.unnest($1::text[])
  UNION SELECT pg_catalog.unnest($2::text[]) WHERE (SELECT accepted_by IS NULL FROM outbox.history ORDER BY id DESC LIMIT 1)
) AS p (name)
CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
  SELECT FROM outbox.queued_tenants(p.name) AS t (tenant) CROSS JOIN LATERAL (
    SELECT FROM outbox.queue WHERE provider = p.name AND tenant = t.tenant AND next_attempt_at <= now() LIMIT $3::int) r
  LIMIT $3::int) q) due;
