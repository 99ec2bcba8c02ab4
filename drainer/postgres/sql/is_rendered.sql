-- $1 worker, $2 operation. Returns whether any worker has rendered a request of it with the same configuration as this
-- worker. Returns no row for a worker that was retired or declared dead.
SELECT w.fingerprints[pg_catalog.array_position(w.providers, t.provider)] = ANY (t.rendered)
FROM outbox.tool t JOIN outbox.worker w ON w.worker_id = $1::uuid
WHERE t.name = $2::text AND t.provider = ANY (w.providers);
