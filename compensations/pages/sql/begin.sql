-- $1 channel, $2 incident, $3 generation, $4 seconds that sending may take, $5 how many pages were sent before, $6 how
-- many incidents the page counts, $7 when the newest of them was opened. From this commit on the page may have been
-- sent, so the end of the group must be sent too. Returns no row if another process is sending the page, has just
-- failed to, or has sent it since it was found to be due. If tried_at is more than a minute in the future, the
-- database's clock has been set back. A tried_at less far in the future was set while this statement waited.
INSERT INTO outbox.page AS p (channel, incident_id, generation, tried_at, tries, left_until, count, newest)
VALUES ($1::text, $2::bigint, $3::int, now(), 1, now() + make_interval(secs => $4::float8), $6::bigint, $7::timestamptz)
ON CONFLICT (channel, incident_id, generation) DO UPDATE
SET tried_at = excluded.tried_at, tries = p.tries + 1, left_until = excluded.left_until, count = excluded.count,
    newest = greatest(p.newest, excluded.newest)
WHERE p.sends = $5::int AND (p.left_until IS NULL OR p.left_until <= now() OR p.tried_at > now() + interval '1 minute')
RETURNING tries;
