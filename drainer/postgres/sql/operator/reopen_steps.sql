-- $1 run, $2 operator, $3 reason, $4 the steps that were undone by hand. Each other step that could not be undone
-- becomes completed again, so that the next pass plans its undo.
INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, reason)
SELECT intent_id, (SELECT max(attempt) + 1 FROM outbox.attempt a WHERE a.intent_id = s.intent_id), $2::text,
       CASE WHEN by_hand THEN 'undone_by_hand' ELSE 'undo_retried' END,
       CASE WHEN by_hand THEN 'compensated' ELSE 'completed' END, $3::text
FROM outbox.standing s CROSS JOIN LATERAL (SELECT s.intent_id = ANY ($4::bigint[]) AS by_hand) told
WHERE s.agent_run_id = $1::text AND s.status = 'compensation_failed'
RETURNING intent_id;
