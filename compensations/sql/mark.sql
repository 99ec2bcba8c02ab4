-- $1 forward intent. Its undo completed without saying so here.
INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status)
SELECT $1::bigint, max(attempt) + 1, 'saga', 'undone', 'compensated' FROM outbox.attempt WHERE intent_id = $1::bigint;
