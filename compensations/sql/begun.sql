-- $1 limit, $2 the kind of job that makes a pass. Sagas for which no such job
-- waits: where there is more to do than is worked off, jobs must not pile up. At
-- random where there are more than one sweep takes: sagas that wait for a human
-- must not keep the others from their turn.
SELECT agent_run_id FROM outbox.saga s
WHERE state = 'begun' AND NOT EXISTS (
  SELECT FROM outbox.river_job j
  WHERE j.kind = $2::text AND j.state = 'available' AND j.args ->> 'agent_run_id' = s.agent_run_id)
ORDER BY random() LIMIT $1::int;
