-- $1 worker, $2 providers, $3 whether they open, $4 for how many seconds, $5
-- whether a probe says so. Anyone opens a closed breaker, and keeps an open one
-- open for longer; what becomes of a half-open one is its probe's to say.
WITH known AS MATERIALIZED (
  SELECT name FROM outbox.provider WHERE name = ANY ($2::text[]) ORDER BY name FOR UPDATE
)
UPDATE outbox.provider p
SET state = CASE WHEN c.opens THEN 'open' ELSE 'closed' END, prober = NULL,
    open_until = CASE WHEN c.opens THEN greatest(CASE WHEN p.state = 'open' THEN p.open_until END,
                                                 clock_timestamp() + make_interval(secs => c.seconds)) END
FROM unnest($2::text[], $3::boolean[], $4::float8[], $5::boolean[]) AS c (name, opens, seconds, probe)
WHERE p.name = c.name AND p.name IN (SELECT name FROM known)
  AND CASE WHEN c.probe THEN p.state = 'half_open' AND p.prober = $1::uuid
           ELSE c.opens AND p.state IN ('closed', 'open') END;
