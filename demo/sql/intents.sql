-- Every intent, with the number of places that hold it. By the invariant it is 1.
WITH held AS (
  SELECT r.intent_id, count(*)::int AS places
  FROM outbox.claim c CROSS JOIN unnest(c.intent_ids, c.attempts) AS r (intent_id, attempt)
  WHERE NOT EXISTS (SELECT FROM outbox.attempt a WHERE (a.intent_id, a.attempt) = (r.intent_id, r.attempt))
  GROUP BY r.intent_id
), newest AS (
  SELECT DISTINCT ON (intent_id) intent_id, next_attempt_at IS NULL AS settled, status
  FROM outbox.attempt ORDER BY intent_id, attempt DESC
), answered AS (
  SELECT DISTINCT intent_id FROM outbox.attempt WHERE status = 'completed' AND response IS NOT NULL
)
SELECT i.id, coalesce(i.compensates, 0), i.agent_run_id, i.step_id,
       outbox.idempotency_key(i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.namespace, NULL,
         (SELECT generation FROM outbox.generation g WHERE g.intent_id = i.id)),
       CASE WHEN n.settled THEN n.status ELSE '' END, ok.intent_id IS NOT NULL,
       (q.intent_id IS NOT NULL)::int + coalesce(h.places, 0) + coalesce(n.settled, false)::int,
       a.agent_run_id IS NOT NULL
FROM outbox.intent i
LEFT JOIN outbox.queue q ON q.intent_id = i.id
LEFT JOIN held h ON h.intent_id = i.id
LEFT JOIN newest n ON n.intent_id = i.id
LEFT JOIN answered ok ON ok.intent_id = i.id
LEFT JOIN agent_state a ON (a.agent_run_id, a.step_id) = (i.agent_run_id, i.step_id)
ORDER BY i.id;
