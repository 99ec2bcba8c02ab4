-- $1 worker, $2 claims that this batch finishes. A batch that repeats another waits here
-- until that has ended: with a part of the lock each, the first one would wait to
-- finish what the second one holds, and that one to settle what the first has settled.
SELECT FROM outbox.claim WHERE claim_id = ANY ($2::bigint[]) AND worker_id = $1::uuid
ORDER BY claim_id FOR UPDATE;
