-- $1 worker, $2 its providers.
WITH announced AS (
  INSERT INTO outbox.provider (name) SELECT unnest($2::text[]) ON CONFLICT DO NOTHING
)
INSERT INTO outbox.worker (worker_id, providers) VALUES ($1::uuid, $2::text[])
ON CONFLICT (worker_id) DO UPDATE SET beat_at = now();  -- who joins again counts its lease from then
