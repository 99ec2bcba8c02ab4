-- $1 run. Counts its steps without undos.
SELECT g.state,
       count(*) FILTER (WHERE s.status = 'cancelled'),
       count(*) FILTER (WHERE s.status = 'in_progress'),
       count(*) FILTER (WHERE s.next_attempt_at IS NOT NULL OR s.status = 'unknown'),
       count(*) FILTER (WHERE s.status = 'completed')
FROM outbox.saga g JOIN outbox.standing s USING (agent_run_id)
WHERE g.agent_run_id = $1::text AND NOT starts_with(s.step_id, 'compensate:'::text)
GROUP BY g.state;
