-- $1 worker, $2 its providers, $3 its tools.
WITH announced AS (
  INSERT INTO outbox.provider (name) SELECT pg_catalog.unnest($2::text[]) ON CONFLICT DO NOTHING
)
INSERT INTO outbox.worker (worker_id, providers, tools) VALUES ($1::uuid, $2::text[], coalesce($3::text[], '{}'))
ON CONFLICT (worker_id) DO UPDATE SET beat_at = now();  -- who joins again counts its lease from then
