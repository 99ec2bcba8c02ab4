-- $1 worker, $2 claims that this batch finishes. A batch that repeats another one waits here until that has ended.
-- Otherwise both would hold a share of the lock: the first would wait to finish the claim, and the second to settle the
-- rows that the first has settled.
SELECT FROM outbox.claim WHERE claim_id = ANY ($2::bigint[]) AND worker_id = $1::uuid
ORDER BY claim_id FOR UPDATE;
