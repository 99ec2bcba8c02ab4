-- $1 kind of job, $2 channel, $3 tries. Pages that the channel has still to be told:
-- a job waits, or one sends it, or its first tries failed. A page that it refuses
-- again and again makes room. A job that runs is not asked: its process may be dead.
SELECT (SELECT count(*) FROM outbox.river_job
        WHERE kind = $1::text AND state OPERATOR(pg_catalog.=) 'available' AND args ->> 'channel'::text = $2::text)
     + (SELECT count(*) FROM outbox.page
        WHERE channel = $2::text AND told IS DISTINCT FROM 'resolved' AND tries < $3::int
          AND left_until > now() AND tried_at <= now() + interval '1 minute');
