-- $1 how many are looked at. Ids up to the newest of the last sample that are not counted yet: a transaction has that
-- long to commit, and one that takes longer is not counted. Of more than $1, so many at random places stand for
-- all. Each intent is looked up by its id, whatever the planner thinks of the table's size.
WITH newest AS MATERIALIZED (
  SELECT coalesce(max(id), 0::bigint) AS id FROM outbox.intent
), before AS MATERIALIZED (
  SELECT (SELECT value FROM outbox.watermark WHERE name = 'enqueues_counted'::text) AS counted,
         (SELECT value FROM outbox.watermark WHERE name = 'enqueues_seen'::text) AS seen
), moved AS (
  INSERT INTO outbox.watermark (name, value)
  SELECT 'enqueues_counted', coalesce(before.seen, newest.id) FROM before CROSS JOIN newest
  UNION ALL SELECT 'enqueues_seen', newest.id FROM newest
  ON CONFLICT (name) DO UPDATE SET value = excluded.value
), looked AS MATERIALIZED (
  SELECT counted + 1::bigint + CASE WHEN span <= $1::bigint THEN n
           ELSE floor((n::float8 + random()) * span::float8 / $1::float8)::bigint END AS id,
         greatest(span::float8 / $1::float8, 1::float8) AS weight
  FROM (SELECT counted, seen - counted AS span FROM before WHERE seen > counted) b
  CROSS JOIN LATERAL generate_series(0::bigint, least(span, $1::bigint) - 1::bigint) AS n
), named AS MATERIALIZED (
  SELECT (SELECT i.provider FROM outbox.intent i WHERE i.id = l.id) AS provider, weight FROM looked l
)
SELECT provider, round(sum(weight))::bigint FROM named WHERE provider IS NOT NULL GROUP BY provider;
