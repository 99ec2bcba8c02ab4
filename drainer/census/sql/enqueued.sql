-- $1 how many intents are looked at. Counts the ids that are not counted yet, up to the newest id of the sample before.
-- So a transaction has the time between two samples to commit; if it takes longer, it is not counted. If there are more
-- than $1 ids, $1 of them at random places represent all. The subquery makes the planner look each intent up by its id,
-- also if its statistics are wrong.
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
