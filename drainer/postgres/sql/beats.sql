-- $1 is the lease in seconds. Returns the last heartbeat of each worker, and whether it is overdue by the database's
-- clock while the worker holds rows. No worker is declared dead by that alone, since this clock may have jumped.
SELECT worker_id::text, beat_at,
       beat_at < now() - make_interval(secs => $1::float8)
         AND EXISTS (SELECT FROM outbox.claim c WHERE c.worker_id = w.worker_id)
FROM outbox.worker w;
