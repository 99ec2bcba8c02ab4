-- $1 worker, $2 operation. Whether a worker with the configuration that this one has made a request of it. Of a worker
-- that was retired, or declared dead, it is not known.
SELECT w.fingerprints[pg_catalog.array_position(w.providers, t.provider)] = ANY (t.rendered)
FROM outbox.tool t JOIN outbox.worker w ON w.worker_id = $1::uuid
WHERE t.name = $2::text AND t.provider = ANY (w.providers);
