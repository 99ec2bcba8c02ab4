-- $1 worker, then one element a change: $2 the provider, or provider/operation, $3 whether its breaker opens, $4
-- why ('' for as before), $5 for how many seconds, $6 whether a probe says so, $7 the intent whose attempt says so (0 for
-- none). Anyone opens a closed breaker, and keeps an open one open for longer; what becomes of a half-open one is its
-- probe's to say. A reason that time does not cure outlasts the two that it does: only a probe replaces it. Its time
-- begins with the first of them and not with the outage before it, for refused.sql ends rows by that time. An outage
-- between two of them does not begin it again.
-- recover.go renders this for providers and for operations.
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
