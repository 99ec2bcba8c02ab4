-- $1 is the worker. One element for each change: $2 the provider, or provider/operation; $3 whether its breaker opens; $4
-- the reason, or '' to keep it; $5 for how many seconds; $6 whether it is the result of a probe; $7 the intent of the
-- attempt, or 0.
-- Any worker may open a closed breaker, or keep an open one open for longer. Only the probe decides about a half-open one.
-- The reasons by which this side is refused are not cured by time, so the two others do not replace them; only a probe
-- does. refused.sql ends rows by how long such a reason has lasted: that time starts with the first refusal, not with an
-- outage before it, and an outage between two refusals does not restart it.
-- recover.go renders this text for providers and for operations.
WITH known AS MATERIALIZED (
  SELECT name FROM outbox.{{.Table}} WHERE name = ANY ($2::text[]) ORDER BY name FOR UPDATE
)
UPDATE outbox.{{.Table}} p
SET state = CASE WHEN c.opens THEN 'open' ELSE 'closed' END, prober = NULL,
    reason = CASE WHEN NOT c.opens THEN NULL
                  WHEN c.why = '' OR (NOT c.probe AND p.state = 'open' AND c.why IN ('overload', 'failure_rate'))
                  THEN coalesce(p.reason, nullif(c.why, '')) ELSE c.why END,
    shut_at = CASE WHEN c.opens THEN coalesce(p.shut_at, clock_timestamp()) END,
    refused_at = CASE WHEN NOT c.opens THEN NULL
                      WHEN c.why NOT IN ('', 'overload', 'failure_rate') THEN coalesce(p.refused_at, clock_timestamp())
                      ELSE p.refused_at END,
    refused_intent = CASE WHEN NOT c.opens THEN NULL
                          WHEN c.why NOT IN ('', 'overload', 'failure_rate') THEN coalesce(nullif(c.intent, 0), p.refused_intent)
                          ELSE p.refused_intent END,
    open_until = CASE WHEN c.opens THEN greatest(CASE WHEN p.state = 'open' THEN p.open_until END,
                                                 clock_timestamp() + make_interval(secs => c.seconds)) END
FROM unnest($2::text[], $3::boolean[], $4::text[], $5::float8[], $6::boolean[], $7::bigint[]) AS c (name, opens, why, seconds, probe, intent)
WHERE p.name = c.name AND p.name IN (SELECT name FROM known)
  AND CASE WHEN c.probe THEN p.state = 'half_open' AND p.prober = $1::uuid
           ELSE c.opens AND p.state IN ('closed', 'open') END;
