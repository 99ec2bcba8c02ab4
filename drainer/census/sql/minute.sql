-- One element a provider: $1 its name, $2 to $5 its attempts of the minute that has ended, $6 how long they took, $7 the
-- age of its oldest due row. Another daemon adds to the same rows. The arrays of $6 are as texts: those of an array
-- of arrays would have to be equally long.
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
