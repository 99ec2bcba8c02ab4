-- $1 run.
SELECT u.intent_id FROM outbox.status u JOIN outbox.intent i ON i.id = u.intent_id
WHERE u.agent_run_id = $1::text AND i.compensates IS NOT NULL
  AND u.finished_at IS NOT NULL AND u.status <> 'completed'
ORDER BY u.intent_id;
