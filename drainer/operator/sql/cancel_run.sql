-- $1 run, $2 operator, $3 reason. From the commit on the run takes no further
-- step, and no claim that starts later takes what waits.
INSERT INTO outbox.saga (agent_run_id, state, ended_at, changed_by, reason)
SELECT $1::text, 'cancelled', now(), $2::text, $3::text WHERE EXISTS (SELECT FROM outbox.intent WHERE agent_run_id = $1::text)
ON CONFLICT DO NOTHING;
