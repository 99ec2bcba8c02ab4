-- $1 worker, $2 operation, $3 for how many seconds. Makes the worker the prober of the operation, with a row that it holds
-- already. The condition is that of claim.sql's probe.
WITH probe AS MATERIALIZED (
  SELECT name FROM outbox.tool
  WHERE name = $2::text
    AND ((state <> 'closed' AND open_until <= clock_timestamp())
      OR (state = 'half_open' AND NOT EXISTS (SELECT FROM outbox.worker w WHERE w.worker_id = prober)))
    AND EXISTS (SELECT FROM outbox.worker WHERE worker_id = $1::uuid)
  FOR UPDATE SKIP LOCKED
)
UPDATE outbox.tool
SET state = 'half_open', prober = $1::uuid, open_until = clock_timestamp() + make_interval(secs => $3::float8)
WHERE name IN (SELECT name FROM probe);
