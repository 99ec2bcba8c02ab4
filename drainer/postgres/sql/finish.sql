-- $1 worker, $2 claims whose last row is settled. This is not part of settle.sql, where the DELETE could run first and
-- hide the claim from the fence.
DELETE FROM outbox.claim WHERE claim_id = ANY ($2::bigint[]) AND worker_id = $1::uuid;
