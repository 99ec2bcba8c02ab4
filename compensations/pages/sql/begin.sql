-- $1 channel, $2 incident, $3 generation. From here on something may have been
-- sent, so the end of it must be sent as well.
INSERT INTO outbox.page (channel, incident_id, generation, tried_at) VALUES ($1::text, $2::bigint, $3::int, now())
ON CONFLICT (channel, incident_id, generation) DO UPDATE SET tried_at = excluded.tried_at;
