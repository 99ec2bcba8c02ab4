-- $1 run, $2 operator, $3 reason. A run whose steps were stopped before may go back afterwards.
INSERT INTO outbox.saga AS s (agent_run_id, changed_by, reason)
SELECT $1::text, $2::text, $3::text WHERE EXISTS (SELECT FROM outbox.intent WHERE agent_run_id = $1::text)
ON CONFLICT (agent_run_id) DO UPDATE
SET state = 'begun', begun_at = now(), ended_at = NULL, changed_by = excluded.changed_by, reason = excluded.reason
WHERE s.state = 'cancelled';
