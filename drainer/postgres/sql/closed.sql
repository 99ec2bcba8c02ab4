-- $1 worker. Runs of what it has claimed that are closed. A claim that saw them closed stopped
-- their rows itself; one that did not is told here, however long it took to close them. Each is
-- looked up by its key, whatever the planner thinks of the tables' sizes.
WITH claimed AS MATERIALIZED (
  SELECT DISTINCT (SELECT i.agent_run_id FROM outbox.intent i WHERE i.id = row.intent_id AND i.compensates IS NULL) AS run
  FROM outbox.claim c CROSS JOIN LATERAL pg_catalog.unnest(c.intent_ids) AS row (intent_id)
  WHERE c.worker_id = $1::uuid AND EXISTS (SELECT FROM outbox.saga)  -- without any, no claimed row is looked at
)
SELECT run FROM claimed
WHERE (SELECT s.agent_run_id FROM outbox.saga s WHERE s.agent_run_id = claimed.run) IS NOT NULL;
