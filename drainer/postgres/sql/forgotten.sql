-- $1 worker, $2 provider, $3 the claims that the worker remembers, $4 server, $5 and $6 the history that this process
-- knows and the log position up to which it saw it. If commits may have been lost, nothing is returned: the settlement of
-- a claim that the worker does not remember may be among the lost ones.
SELECT claim_id, worker_id::text FROM outbox.claim
WHERE worker_id = $1::uuid AND provider = $2::text AND server = $4::text AND claim_id <> ALL ($3::bigint[])
  AND EXISTS (
    SELECT FROM (SELECT *, tableoid FROM outbox.history ORDER BY id DESC LIMIT 1) h
    WHERE id = $5::int AND tableoid = table_oid AND (lsn >= $6::pg_lsn) IS NOT FALSE
      AND CASE WHEN timeline IS NULL THEN true ELSE timeline = pg_catalog.concat('x'::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END)
ORDER BY claim_id FOR UPDATE SKIP LOCKED;
