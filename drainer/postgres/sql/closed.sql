-- $1 is the worker. Returns the closed runs of which it has claimed rows. A claim cancels the rows of runs that were
-- closed before; this finds those that were closed later, however long the closing transaction took. Each run is looked
-- up by its key, independent of the planner's estimates.
WITH claimed AS MATERIALIZED (
  SELECT DISTINCT (SELECT i.agent_run_id FROM outbox.intent i WHERE i.id = row.intent_id AND i.compensates IS NULL) AS run
  FROM outbox.claim c CROSS JOIN LATERAL pg_catalog.unnest(c.intent_ids) AS row (intent_id)
  WHERE c.worker_id = $1::uuid AND EXISTS (SELECT FROM outbox.saga)  -- without any, no claimed row is looked at
)
SELECT run FROM claimed
WHERE (SELECT s.agent_run_id FROM outbox.saga s WHERE s.agent_run_id = claimed.run) IS NOT NULL;
