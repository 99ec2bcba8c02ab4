-- $1 process, $2 up to which time duplicates were counted before, $3 and now, $4 counted collisions. If another leader
-- has replaced this process, nothing changes.
UPDATE outbox.census SET counted_until = $3::timestamptz, collisions = $4::bigint
WHERE leader = $1::uuid AND counted_until = $2::timestamptz;
