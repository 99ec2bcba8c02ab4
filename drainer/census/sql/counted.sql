-- $1 process, $2 how far it was counted before, $3 and now, $4 collisions. A leader that was replaced changes nothing.
UPDATE outbox.census SET counted_until = $3::timestamptz, collisions = $4::bigint
WHERE leader = $1::uuid AND counted_until = $2::timestamptz;
