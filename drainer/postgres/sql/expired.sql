-- $1 worker, $2 providers, $3 for how many seconds a row may stay parked after a living worker last knew its operation, $4
-- limit of rows. An open breaker may have parked the row long before that. Each call records which operations are known
-- now, at most once a minute. Claims the expired rows, which the same transaction settles. The lane of parked rows is
-- named provider/operation; '0' is the character after '/'.
WITH RECURSIVE lane AS (
  -- a loose index scan: it reads one entry for each lane, however many rows the lane has
  SELECT p.name, (SELECT q.provider FROM outbox.queue q
                  WHERE q.provider >= p.name || '/' AND q.provider < p.name || '0' ORDER BY q.provider LIMIT 1) AS lane
  FROM pg_catalog.unnest($2::text[]) AS p (name)
  UNION ALL
  SELECT name, (SELECT q.provider FROM outbox.queue q
                WHERE q.provider > lane.lane AND q.provider < name || '0' ORDER BY q.provider LIMIT 1)
  FROM lane WHERE lane.lane IS NOT NULL
), known AS (
  UPDATE outbox.tool SET seen_at = now() WHERE name = ANY (ARRAY(
    SELECT t.name FROM outbox.tool t WHERE t.provider = ANY ($2::text[]) AND t.seen_at < now() - interval '1 minute'
      AND EXISTS (SELECT FROM outbox.worker w WHERE t.name = ANY (w.tools))
      -- this condition is not in the walk, which would not stop at the lanes that are read below: agents may invent any number
      AND EXISTS (SELECT FROM outbox.queue q WHERE q.provider = t.name)
    ORDER BY t.name FOR UPDATE SKIP LOCKED))  -- another worker's look, or a breaker, need not be waited for
), taken AS (
  DELETE FROM outbox.queue WHERE ctid = ANY (ARRAY(
    SELECT due.ctid FROM (SELECT lane FROM lane WHERE lane IS NOT NULL LIMIT 1000) l CROSS JOIN LATERAL outbox.queued_tenants(l.lane) AS t (tenant) CROSS JOIN LATERAL (
      SELECT ctid FROM outbox.queue WHERE provider = l.lane AND tenant = t.tenant AND next_attempt_at <= now() - make_interval(secs => $3::float8)
      ORDER BY next_attempt_at, intent_id LIMIT $4::int FOR UPDATE SKIP LOCKED) due
    WHERE NOT EXISTS (SELECT FROM outbox.worker w WHERE l.lane = ANY (w.tools))
      AND NOT EXISTS (SELECT FROM outbox.tool t WHERE t.name = l.lane AND t.seen_at > now() - make_interval(secs => $3::float8))
    LIMIT $4::int))
  RETURNING *
)
INSERT INTO outbox.claim (worker_id, provider, server, era, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
SELECT $1::uuid, name, name, min(era), pg_catalog.array_agg(intent_id), pg_catalog.array_agg(attempt + 1), pg_catalog.array_agg(tries + 1),
       pg_catalog.array_agg(first_attempt_at),
       -- no claim looks at their lane, so it is here that what was queued before commits were lost is in doubt
       pg_catalog.array_agg(maybe_applied OR era < (SELECT before_era FROM outbox.in_doubt())),
       pg_catalog.array_agg(lookup), pg_catalog.array_agg(via)
FROM (SELECT *, split_part(provider, '/'::text, 1) AS name FROM taken) t GROUP BY name
RETURNING claim_id, worker_id::text;
