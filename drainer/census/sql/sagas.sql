-- $1 limit of the counts.
SELECT (SELECT count(*) FROM (SELECT FROM outbox.saga WHERE state = 'begun' LIMIT $1::int) s),
       (SELECT count(*) FROM (SELECT FROM outbox.saga WHERE state = 'compensation_failed' LIMIT $1::int) s),
       coalesce(extract(epoch FROM now() - (
         SELECT begun_at FROM outbox.saga WHERE state = 'begun' ORDER BY begun_at LIMIT 1)), 0)::float8;
