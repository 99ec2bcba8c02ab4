-- One element a provider: $1 name, $2 to $5 its attempts in the minute that has ended, $6 their durations by bucket, $7
-- the age of its oldest due row. All daemons add to the same rows. $6 has arrays as texts, because the inner arrays of
-- an array must all have the same length.
WITH gone AS (
  DELETE FROM outbox.minute WHERE at < now() - interval '61 minutes'
)
INSERT INTO outbox.minute AS m (at, provider, completed, refused, busy, in_doubt, took, oldest)
SELECT date_trunc('minute'::text, now() + interval '30 seconds') - interval '1 minute', name, completed, refused, busy, in_doubt, took::bigint[], oldest
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::float8[])
  AS n (name, completed, refused, busy, in_doubt, took, oldest)
ORDER BY name
ON CONFLICT (at, provider) DO UPDATE SET
  completed = m.completed + excluded.completed, refused = m.refused + excluded.refused,
  busy = m.busy + excluded.busy, in_doubt = m.in_doubt + excluded.in_doubt,
  took = ARRAY(SELECT coalesce(a, 0) + coalesce(b, 0)
               FROM unnest(m.took, excluded.took) WITH ORDINALITY AS t (a, b, n) ORDER BY n),
  oldest = greatest(m.oldest, excluded.oldest);
