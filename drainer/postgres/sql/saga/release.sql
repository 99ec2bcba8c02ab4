-- $1 runs, $2 the number of the pass that took each. Makes their sagas due now, unless another pass has taken them.
WITH held AS MATERIALIZED (
  SELECT agent_run_id, passes FROM outbox.saga
  WHERE agent_run_id = ANY ($1::text[]) AND state = 'begun' ORDER BY agent_run_id FOR UPDATE
)
UPDATE outbox.saga SET passes = 0, moves_at = least(moves_at, now()) WHERE agent_run_id = ANY (ARRAY(
  SELECT agent_run_id FROM held WHERE (agent_run_id, passes) IN (SELECT * FROM unnest($1::text[], $2::int[]))));
