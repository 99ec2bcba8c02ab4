-- $1 worker, then one element a row: $2 claim, $3 intent, $4 lane, $5 in how many seconds it is due. Puts rows of an
-- operation that is not configured here, or is shut, into a lane that bears the operation's name, where no claim looks;
-- or back into their provider's lane, where an operation of their fallback is shut. Nothing is recorded and no try is
-- used; only the attempt's number is. They leave their claim, so that it accounts for them no longer, and a batch that
-- comes twice parks them once. A claim that others took over is left alone, and so is a row that a reaper settled while
-- it left the claim to another reaper. The statement before this one locks the claims: this one's snapshot is then newer
-- than what a reaper has committed.
WITH held AS MATERIALIZED (
  SELECT * FROM outbox.claim WHERE claim_id = ANY ($2::bigint[]) AND worker_id = $1::uuid
), parked AS MATERIALIZED (
  -- grouped: a join of the two would be thought to be of few rows, and would compare each with each
  SELECT claim_id, intent_id, max(attempt) AS attempt, max(tries) AS tries, max(first_attempt_at) AS first_attempt_at,
         bool_or(maybe_applied) AS maybe_applied, bool_or(lookup) AS lookup, max(via) AS via, max(lane) AS lane, max(wait) AS wait
  FROM (
    SELECT held.claim_id, r.*, NULL AS lane, NULL AS wait
    FROM held CROSS JOIN LATERAL unnest(intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
      AS r (intent_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via)
    UNION ALL
    SELECT claim_id, intent_id, NULL, NULL, NULL, NULL, NULL, NULL, lane, wait
    FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::float8[]) AS l (claim_id, intent_id, lane, wait)
  ) each
  GROUP BY claim_id, intent_id HAVING max(attempt) IS NOT NULL AND max(lane) IS NOT NULL
    AND (SELECT a.attempt FROM outbox.attempt a WHERE (a.intent_id, a.attempt) = (each.intent_id, max(each.attempt))) IS NULL
), shrunk AS (
  UPDATE outbox.claim c
  SET (intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias) = (
    SELECT coalesce(pg_catalog.array_agg(r.intent_id), '{}'), coalesce(pg_catalog.array_agg(r.attempt), '{}'),
           coalesce(pg_catalog.array_agg(r.tries), '{}'), coalesce(pg_catalog.array_agg(r.first_attempt_at), '{}'),
           coalesce(pg_catalog.array_agg(r.maybe_applied), '{}'), coalesce(pg_catalog.array_agg(r.lookup), '{}'),
           coalesce(pg_catalog.array_agg(r.via), '{}')
    FROM unnest(held.intent_ids, held.attempts, held.tries, held.first_attempt_ats, held.maybe_applied, held.lookups, held.vias)
      AS r (intent_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via)
    WHERE (r.intent_id IN (SELECT intent_id FROM parked)) IS NOT TRUE)
  FROM held WHERE c.claim_id = held.claim_id AND held.claim_id IN (SELECT claim_id FROM parked)
)
INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via, bytes, tenant, era)
SELECT p.lane, clock_timestamp() + make_interval(secs => p.wait), p.intent_id, i.agent_run_id, p.attempt, p.tries - 1, p.first_attempt_at, p.maybe_applied, p.lookup,
       CASE WHEN p.maybe_applied THEN p.via END, i.payload_bytes + coalesce(octet_length(i.headers::text), 0), coalesce(i.tenant, 0::smallint),
       (SELECT era FROM held WHERE held.claim_id = p.claim_id)
FROM parked p JOIN outbox.intent i ON i.id = p.intent_id;
