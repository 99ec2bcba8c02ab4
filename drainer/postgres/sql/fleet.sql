-- $1 worker. How many live, how many of them come before this one, and the
-- gates they share.
SELECT w.living, w.before, p.name, p.paused, p.state,
       greatest(0, extract(epoch FROM p.open_until - clock_timestamp()))::float8
FROM (SELECT count(*) AS living, count(*) FILTER (WHERE worker_id < $1::uuid) AS before FROM outbox.worker) w
CROSS JOIN outbox.provider p;
