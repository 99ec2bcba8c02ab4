-- Counts the duplicates seen after $1 and up to $2. The subquery makes the planner look each intent up by its id, also if
-- its statistics are wrong.
WITH repeated AS MATERIALIZED (
  SELECT intent_id, count(*) AS times FROM outbox.duplicate WHERE seen_at > $1::timestamptz AND seen_at <= $2::timestamptz GROUP BY intent_id
), named AS MATERIALIZED (
  SELECT (SELECT i.provider FROM outbox.intent i WHERE i.id = r.intent_id) AS provider, times FROM repeated r
)
SELECT provider, sum(times)::bigint FROM named WHERE provider IS NOT NULL GROUP BY provider;
