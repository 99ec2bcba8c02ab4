-- $1 kind of job, $2 channel.
SELECT EXISTS (SELECT FROM outbox.river_job
  WHERE kind = $1::text AND state OPERATOR(pg_catalog.=) 'available' AND args ->> 'channel'::text = $2::text);
