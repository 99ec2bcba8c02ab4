-- $1 lease in seconds. The last heartbeat of each worker, and whether it looks dead by this
-- clock and holds rows. That decides no death: this clock may have leapt.
SELECT worker_id::text, beat_at,
       beat_at < now() - make_interval(secs => $1::float8)
         AND EXISTS (SELECT FROM outbox.claim c WHERE c.worker_id = w.worker_id)
FROM outbox.worker w;
