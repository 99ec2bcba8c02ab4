-- $1 providers, $2 the last claim that was looked at. Locks claims of workers that were declared dead, and skips those
-- that another reaper holds.
SELECT claim_id, worker_id::text FROM outbox.claim c
WHERE provider = ANY ($1::text[]) AND NOT EXISTS (SELECT FROM outbox.worker w WHERE w.worker_id = c.worker_id)
  AND claim_id > $2::bigint
ORDER BY claim_id LIMIT 20 FOR UPDATE SKIP LOCKED;
