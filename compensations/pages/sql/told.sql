-- $1 channel, $2 incident, $3 generation, $4 state, $5 the sends before. If two
-- senders met, neither knows which message came last, and it is sent once more.
UPDATE outbox.page
SET told = CASE WHEN sends = $5::int THEN $4::text END, told_at = now(), sends = sends + 1, tries = 0, left_until = NULL
WHERE channel = $1::text AND incident_id = $2::bigint AND generation = $3::int;
