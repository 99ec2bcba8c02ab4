-- $1 channel, $2 incident, $3 generation, $4 state, $5 how many pages were sent before. If two processes sent the page
-- at the same time, neither knows which message came last, so the page is sent once more.
UPDATE outbox.page
SET told = CASE WHEN sends = $5::int THEN $4::text END, told_at = now(), sends = sends + 1, tries = 0, left_until = NULL
WHERE channel = $1::text AND incident_id = $2::bigint AND generation = $3::int;
