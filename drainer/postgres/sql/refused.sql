-- $1 worker, $2 providers, $3 seconds that a row may wait for a gate that is shut because this side was refused,
-- $4 how many rows at most. Claims those rows, for the same transaction to settle. What a fallback may have
-- applied waits for the fallback.
WITH shut AS MATERIALIZED (
  SELECT name FROM outbox.provider
  WHERE name = ANY ($2::text[]) AND state <> 'closed' AND reason = 'credentials_refused'
    AND refused_at <= now() - make_interval(secs => $3::float8)
  UNION ALL
  SELECT name FROM outbox.tool
  WHERE provider = ANY ($2::text[]) AND state <> 'closed' AND reason = ANY (ARRAY['forbidden', 'misconfigured'])
    AND refused_at <= now() - make_interval(secs => $3::float8)
), taken AS (
  DELETE FROM outbox.queue WHERE ctid = ANY (ARRAY(
    SELECT due.ctid FROM shut CROSS JOIN LATERAL outbox.queued_tenants(shut.name) AS t (tenant) CROSS JOIN LATERAL (
      SELECT ctid FROM outbox.queue q
      WHERE q.provider = shut.name AND q.tenant = t.tenant AND q.next_attempt_at <= now() AND q.via IS NULL
        AND q.era >= (SELECT before_era FROM outbox.in_doubt())  -- something may have been sent
        AND (SELECT i.created_at FROM outbox.intent i WHERE i.id = q.intent_id) <= now() - make_interval(secs => $3::float8)
      ORDER BY q.next_attempt_at, q.intent_id LIMIT $4::int FOR UPDATE SKIP LOCKED) due
    LIMIT $4::int))
  RETURNING *
)
INSERT INTO outbox.claim (worker_id, provider, server, era, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
SELECT $1::uuid, name, name, min(era), pg_catalog.array_agg(intent_id), pg_catalog.array_agg(attempt + 1), pg_catalog.array_agg(tries + 1),
       pg_catalog.array_agg(first_attempt_at), pg_catalog.array_agg(maybe_applied), pg_catalog.array_agg(lookup), pg_catalog.array_agg(via)
FROM (SELECT *, split_part(provider, '/'::text, 1) AS name FROM taken) t GROUP BY name
RETURNING claim_id, worker_id::text;
