-- $1 channel, $2 incident, $3 generation, $4 seconds until the next try, by the database's clock, since the clocks of
-- processes differ.
UPDATE outbox.page SET tried_at = now(), left_until = now() + make_interval(secs => $4::float8)
WHERE channel = $1::text AND incident_id = $2::bigint AND generation = $3::int;
