-- $1 the intent whose effect late.sql is about to record. This is a statement of its own: if a claim is taking the queue
-- row, it waits, and late.sql then sees the claim.
DELETE FROM outbox.queue WHERE intent_id = $1::bigint;
