-- One snapshot of the progress. It is no proof, so an intent counts as settled if it is neither queued nor
-- claimed. Only the agents' own intents count, not undos.
WITH undo AS MATERIALIZED (
  SELECT id FROM outbox.intent WHERE compensates IS NOT NULL
), committed AS (
  SELECT count(*) AS rows FROM outbox.intent WHERE compensates IS NULL
), queued AS (
  SELECT count(*) AS rows FROM outbox.queue WHERE intent_id NOT IN (SELECT id FROM undo)
), held AS (
  SELECT count(*) AS rows
  FROM outbox.claim c CROSS JOIN unnest(c.intent_ids, c.attempts) AS r (intent_id, attempt)
  WHERE NOT EXISTS (SELECT FROM outbox.attempt a WHERE (a.intent_id, a.attempt) = (r.intent_id, r.attempt))
    AND r.intent_id NOT IN (SELECT id FROM undo)
), attempted AS (
  SELECT count(*) FILTER (WHERE status = 'pending' AND outcome NOT IN ('lost', 'released')) AS retries,
         count(*) FILTER (WHERE outcome = 'lost') AS recovered
  FROM outbox.attempt
), paid AS (
  SELECT count(*) AS trips FROM outbox.status WHERE tool_name = 'cards/charge' AND status = 'completed'
), back AS (
  SELECT count(*) FILTER (WHERE state = 'begun') AS going,
         count(*) FILTER (WHERE state = 'compensated') AS undone,
         count(*) FILTER (WHERE state = 'compensation_failed') AS stuck
  FROM outbox.saga
)
SELECT committed.rows, committed.rows - queued.rows - held.rows, held.rows, attempted.retries, attempted.recovered,
       paid.trips, back.going, back.undone, back.stuck
FROM committed, queued, held, attempted, paid, back;
