-- $1 worker. Returns for each provider its gate, how many workers serve it, and how many of these come before this worker;
-- and the gates of operations that are shut.
SELECT p.name, p.paused, p.state, coalesce(p.reason, ''), greatest(0, extract(epoch FROM p.open_until - clock_timestamp()))::float8,
       w.serving, w.before
FROM outbox.provider p
CROSS JOIN LATERAL (
  SELECT count(*) AS serving, count(*) FILTER (WHERE worker_id < $1::uuid) AS before
  FROM outbox.worker WHERE p.name = ANY (providers)) w
UNION ALL
SELECT name, false, state, coalesce(reason, ''), greatest(0, extract(epoch FROM open_until - clock_timestamp()))::float8, 0, 0
FROM outbox.tool WHERE state <> 'closed';
