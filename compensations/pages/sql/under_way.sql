-- $1 kind of job, $2 channel, $3 seconds that one may run.
SELECT count(*) FROM outbox.river_job
WHERE kind = $1::text AND finalized_at IS NULL AND args ->> 'channel' = $2::text
  AND (state <> 'running' OR attempted_at > now() - make_interval(secs => $3::float8));
