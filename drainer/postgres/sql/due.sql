-- $1 providers, $2 where counting stops.
SELECT p.name, due.rows
FROM pg_catalog.unnest($1::text[]) AS p (name)
CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
  SELECT FROM outbox.queue WHERE provider = p.name AND next_attempt_at <= now() LIMIT $2::int) q) due;
