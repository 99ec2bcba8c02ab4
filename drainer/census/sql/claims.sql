-- $1 seconds that a row may be in progress before it counts as long. There are only as many claims as the lanes
-- have in progress.
SELECT c.provider, sum(pg_catalog.cardinality(c.intent_ids))::bigint,
       coalesce(extract(epoch FROM now() - min(c.claimed_at)), 0)::float8,
       coalesce(sum(long.rows), 0)::bigint
FROM outbox.claim c
LEFT JOIN LATERAL (
  SELECT count(*) AS rows FROM unnest(c.intent_ids, c.attempts) AS r (intent_id, attempt)
  -- a claim lists a settled row until its last row is settled
  WHERE (SELECT a.attempt FROM outbox.attempt a WHERE a.intent_id = r.intent_id AND a.attempt = r.attempt) IS NULL
) long ON c.claimed_at < now() - make_interval(secs => $1::float8)
GROUP BY c.provider;
