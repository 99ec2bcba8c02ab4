-- $1 run. Returns the undos that settled without completing, except those of steps that were undone by hand.
SELECT u.intent_id FROM outbox.standing u
JOIN outbox.intent i ON i.id = u.intent_id
JOIN outbox.standing undone ON undone.intent_id = i.compensates
WHERE u.agent_run_id = $1::text AND u.finished_at IS NOT NULL AND u.status <> 'completed'
  AND undone.status <> 'compensated'
ORDER BY u.intent_id;
