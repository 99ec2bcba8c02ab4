-- $1 intent, of which late proof of its effect is about to be recorded. A statement of its own, before
-- late.sql: where a claim has the queue row, this waits, and late.sql then sees what came of that.
DELETE FROM outbox.queue WHERE intent_id = $1::bigint;
