-- $1 channel, $2 incident, $3 generation, $4 seconds that sending may take, $5 the
-- sends before, $6 how many incidents the page counts, $7 when the newest of them was
-- opened. From here on something may have been sent, so the end of it must be
-- sent as well. No row says that another process is at it, has just failed, or has
-- sent it since it was looked up. What was tried a minute and more from now was tried
-- by a clock which has been set back; a moment from now, while this statement waited.
INSERT INTO outbox.page AS p (channel, incident_id, generation, tried_at, tries, left_until, count, newest)
VALUES ($1::text, $2::bigint, $3::int, now(), 1, now() + make_interval(secs => $4::float8), $6::bigint, $7::timestamptz)
ON CONFLICT (channel, incident_id, generation) DO UPDATE
SET tried_at = excluded.tried_at, tries = p.tries + 1, left_until = excluded.left_until, count = excluded.count,
    newest = greatest(p.newest, excluded.newest)
WHERE p.sends = $5::int AND (p.left_until IS NULL OR p.left_until <= now() OR p.tried_at > now() + interval '1 minute')
RETURNING tries;
