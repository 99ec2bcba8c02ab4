-- One snapshot. Progress asks for numbers, not for proof, so it counts what is
-- settled as what is neither queued nor held.
WITH held AS (
  SELECT count(*) AS rows
  FROM outbox.claim c CROSS JOIN unnest(c.intent_ids, c.attempts) AS r (intent_id, attempt)
  WHERE NOT EXISTS (SELECT FROM outbox.attempt a WHERE (a.intent_id, a.attempt) = (r.intent_id, r.attempt))
), committed AS (
  SELECT count(*) AS rows FROM outbox.intent
), attempted AS (
  SELECT count(*) FILTER (WHERE status = 'pending' AND outcome NOT IN ('lost', 'released')) AS retries,
         count(*) FILTER (WHERE outcome = 'lost') AS recovered
  FROM outbox.attempt
)
SELECT committed.rows, committed.rows - (SELECT count(*) FROM outbox.queue) - held.rows, held.rows, retries, recovered
FROM held, committed, attempted;
