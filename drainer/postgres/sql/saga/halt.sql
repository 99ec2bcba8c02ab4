-- $1 runs. Stops what waits and was applied by no attempt. It waits for claims
-- that have not seen the saga: once this returns, whatever can still act is in
-- a committed claim. What may have been applied is for its lane to look up.
WITH gone AS (
  DELETE FROM outbox.queue q
  WHERE q.intent_id = ANY (ARRAY(SELECT id FROM outbox.intent WHERE agent_run_id = ANY ($1::text[]) AND compensates IS NULL))
    AND NOT q.lookup AND NOT q.maybe_applied
    AND q.era >= (SELECT before_era FROM outbox.in_doubt())
  RETURNING q.intent_id, q.attempt
)
INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
SELECT intent_id, attempt + 1, 'saga', 'cancelled', 'cancelled' FROM gone;
