-- $1 channel, $2 incident, $3 generation. From here on something may have been
-- sent, so the end of it must be sent as well.
INSERT INTO outbox.page (channel, incident_id, generation) VALUES ($1::text, $2::bigint, $3::int) ON CONFLICT DO NOTHING;
