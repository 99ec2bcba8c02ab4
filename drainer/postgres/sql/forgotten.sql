-- $1 worker, $2 provider, $3 the claims it remembers, $4 server.
SELECT claim_id, worker_id::text FROM outbox.claim
WHERE worker_id = $1::uuid AND provider = $2::text AND server = $4::text AND claim_id <> ALL ($3::bigint[])
ORDER BY claim_id FOR UPDATE SKIP LOCKED;
