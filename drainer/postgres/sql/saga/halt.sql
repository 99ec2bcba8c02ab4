-- $1 runs. Cancels their queued rows that no attempt can have applied. It waits for uncommitted claims, which
-- have not seen the saga: once it returns, each row that can still be sent is in a committed claim. Rows that may
-- have been applied stay in the queue, and their lane looks them up.
WITH gone AS (
  DELETE FROM outbox.queue q
  WHERE q.intent_id = ANY (ARRAY(SELECT id FROM outbox.intent WHERE agent_run_id = ANY ($1::text[]) AND compensates IS NULL))
    AND NOT q.lookup AND NOT q.maybe_applied
    AND q.era >= (SELECT before_era FROM outbox.in_doubt())
  RETURNING q.intent_id, q.attempt
)
INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
SELECT intent_id, attempt + 1, 'saga', 'cancelled', 'cancelled' FROM gone;
