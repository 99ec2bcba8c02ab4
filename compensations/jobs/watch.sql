-- $1 the kinds of jobs that look round.
-- How long the oldest job of each kind has been due, and how long ago the last look of each
-- kind began, by the database's clock. River's own clock is that of a process: where that
-- one is ahead, a job that it gave back lies in the future. No job of ours is planned
-- for later, so it is due now. Where the clock of the process that leads is behind, that
-- one leaves jobs of others waiting which are due.
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
