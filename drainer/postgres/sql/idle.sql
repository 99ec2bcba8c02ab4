-- $1 providers, $2 whether their lanes wait, $3 for how many seconds. A row that another worker is marking is skipped, so
-- that two workers' marks cannot deadlock.
UPDATE outbox.provider p
SET idle_until = CASE WHEN m.waiting THEN clock_timestamp() + make_interval(secs => $3::float8) ELSE '-infinity' END
FROM unnest($1::text[], $2::boolean[]) AS m (name, waiting)
WHERE p.name = m.name
  AND p.ctid = ANY (ARRAY(SELECT ctid FROM outbox.provider WHERE name = ANY ($1::text[]) FOR UPDATE SKIP LOCKED));
