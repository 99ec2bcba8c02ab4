-- $1 the kinds of jobs that look for work.
-- Returns how long the oldest job of each kind has been due, and how long ago the last look of each kind began, by
-- the database's clock. River uses the clocks of processes. If the clock of a process is ahead, a job that it gives
-- back is due only in the future. No job of this product is planned for later, so such a job is made due now. If
-- the leader's clock is behind, the leader leaves due jobs of other processes waiting, so these are made available.
WITH mended AS (
  UPDATE outbox.river_job SET scheduled_at = now(), state = 'available'
  WHERE state OPERATOR(pg_catalog.=) ANY ('{available,retryable,scheduled}')
    AND CASE WHEN state OPERATOR(pg_catalog.=) 'available' THEN scheduled_at > now()
             ELSE scheduled_at > now() + interval '2 minutes' OR scheduled_at < now() - interval '15 s' END
)
SELECT kind, extract(epoch FROM now() - min(scheduled_at))::float8, NULL::float8
FROM outbox.river_job WHERE state OPERATOR(pg_catalog.=) ANY ('{available,retryable,scheduled}') AND scheduled_at <= now()
GROUP BY kind
UNION ALL
SELECT looks.kind, NULL, extract(epoch FROM now() - (
    SELECT max(j.attempted_at) FROM outbox.river_job j WHERE j.kind = looks.kind AND j.state OPERATOR(pg_catalog.=) 'completed'))::float8
FROM pg_catalog.unnest($1::text[]) AS looks (kind);
