-- $1 run, $2 operator, $3 reason, $4 limit. Cancels the queued rows of the run that cannot have been applied. The other
-- rows stay in the queue, and their lane looks them up. A row that a claim holds at this moment was claimed before the
-- run was closed.
WITH stopped AS (
  DELETE FROM outbox.queue WHERE ctid = ANY (ARRAY(
    SELECT q.ctid FROM outbox.intent i JOIN outbox.queue q ON q.intent_id = i.id
    WHERE i.agent_run_id = $1::text AND i.compensates IS NULL AND NOT q.lookup AND NOT q.maybe_applied
      AND q.era >= (SELECT before_era FROM outbox.in_doubt())
    ORDER BY q.intent_id LIMIT $4::int
    FOR UPDATE OF q SKIP LOCKED))
  RETURNING intent_id, attempt
)
INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, reason)
SELECT intent_id, attempt + 1, $2::text, 'cancelled', 'cancelled', $3::text FROM stopped;
