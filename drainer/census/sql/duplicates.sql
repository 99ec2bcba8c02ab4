-- Duplicates seen in ($1, $2]. Each intent is looked up by its id, whatever the planner thinks of the tables' sizes.
WITH repeated AS MATERIALIZED (
  SELECT intent_id, count(*) AS times FROM outbox.duplicate WHERE seen_at > $1::timestamptz AND seen_at <= $2::timestamptz GROUP BY intent_id
), named AS MATERIALIZED (
  SELECT (SELECT i.provider FROM outbox.intent i WHERE i.id = r.intent_id) AS provider, times FROM repeated r
)
SELECT provider, sum(times)::bigint FROM named WHERE provider IS NOT NULL GROUP BY provider;
