-- $1 worker, $2 operations of which it rendered a request. The fingerprints of the last few configurations are kept, since
-- replicas may differ, and a new configuration may be rolled back. Writes nothing for a worker that was retired.
WITH known AS MATERIALIZED (
  SELECT t.name, w.fingerprints[pg_catalog.array_position(w.providers, t.provider)] AS fingerprint
  FROM outbox.tool t JOIN outbox.worker w ON w.worker_id = $1::uuid
  WHERE t.name = ANY ($2::text[]) ORDER BY t.name FOR UPDATE OF t  -- in the order in which batches lock them
)
UPDATE outbox.tool t SET rendered = (pg_catalog.array_prepend(k.fingerprint, t.rendered))[1:4]
FROM known k
WHERE t.name = k.name AND k.fingerprint <> '' AND k.fingerprint <> ALL (t.rendered);
