-- $1 worker, $2 its providers, $3 its tools, $4 the fingerprints of its providers' configuration, $5 that of all of it. A tool that its daemons no longer name is forgotten once no worker
-- knows it and none of its rows is parked: an hour after it was named last, because a worker that joins at this moment cannot be seen.
WITH announced AS (
  INSERT INTO outbox.provider (name) SELECT pg_catalog.unnest($2::text[]) ON CONFLICT DO NOTHING
), served AS (
  INSERT INTO outbox.tool (name) SELECT tool FROM pg_catalog.unnest($3::text[]) AS t (tool) ORDER BY tool
  ON CONFLICT (name) DO UPDATE SET seen_at = now()
), forgotten AS (
  DELETE FROM outbox.tool t
  WHERE provider = ANY ($2::text[]) AND name <> ALL (coalesce($3::text[], '{}')) AND seen_at < now() - interval '1 hour'
    AND NOT EXISTS (SELECT FROM outbox.worker w WHERE t.name = ANY (w.tools))
    AND NOT EXISTS (SELECT FROM outbox.queue q WHERE q.provider = t.name)  -- expired.sql asks when it was known last
)
INSERT INTO outbox.worker (worker_id, providers, tools, fingerprints, configuration)
VALUES ($1::uuid, $2::text[], coalesce($3::text[], '{}'), coalesce($4::text[], '{}'), $5::text)
ON CONFLICT (worker_id) DO UPDATE SET beat_at = now();  -- who joins again counts its lease from then
