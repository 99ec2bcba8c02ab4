-- $1 providers that a worker begins to serve. If a provider refused this side, it may accept the new configuration, so its
-- cool-down ends now and the next row probes it. A probe under way goes on.
WITH known AS MATERIALIZED (
  SELECT name FROM outbox.tool WHERE provider = ANY ($1::text[]) AND state = 'open' AND reason = ANY (ARRAY['forbidden', 'misconfigured'])
  ORDER BY name FOR UPDATE
), operations AS (
  UPDATE outbox.tool SET open_until = clock_timestamp() WHERE name IN (SELECT name FROM known)
)
UPDATE outbox.provider SET open_until = clock_timestamp()
WHERE name = ANY ($1::text[]) AND state = 'open' AND reason = 'credentials_refused';
