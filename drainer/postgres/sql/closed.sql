-- $1 worker. Runs that were closed after this worker claimed: a claim that began
-- later stopped their rows itself. The minute is for how long closing one takes to commit.
SELECT agent_run_id FROM outbox.saga
WHERE begun_at > (SELECT min(claimed_at) FROM outbox.claim WHERE worker_id = $1::uuid) - interval '1 minute';
