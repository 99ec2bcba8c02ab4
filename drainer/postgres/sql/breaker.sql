-- $1 worker, $2 providers, $3 whether they open, $4 for how many seconds. Anyone
-- opens a closed breaker; what becomes of a half-open one is its prober's to say.
WITH known AS MATERIALIZED (
  SELECT name FROM outbox.provider WHERE name = ANY ($2::text[]) ORDER BY name FOR UPDATE
)
UPDATE outbox.provider p
SET state = CASE WHEN c.opens THEN 'open' ELSE 'closed' END, prober = NULL,
    open_until = CASE WHEN c.opens THEN clock_timestamp() + make_interval(secs => c.seconds) END
FROM unnest($2::text[], $3::boolean[], $4::float8[]) AS c (name, opens, seconds)
WHERE p.name = c.name AND p.name IN (SELECT name FROM known)
  AND ((c.opens AND p.state = 'closed') OR (p.state = 'half_open' AND p.prober = $1::uuid));
