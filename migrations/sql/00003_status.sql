-- +goose Up

-- Where each intent stands. What is neither queued nor settled is claimed, so
-- the claims, slow to search, need not be read.
CREATE VIEW outbox.status AS
SELECT i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.provider,
       outbox.idempotency_key(i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.namespace, NULL,
         (SELECT generation FROM outbox.generation g WHERE g.intent_id = i.id)) AS idempotency_key,
       CASE WHEN last.status <> 'pending' THEN last.status
            WHEN q.intent_id IS NULL THEN 'in_progress'
            ELSE 'pending' END AS status,
       -- dispatches that may have sent something: not what was given back, nor a lookup, nor what an operator did
       (SELECT count(*)::int FROM outbox.attempt a
        WHERE a.intent_id = i.id AND a.started_at IS NOT NULL AND NOT a.lookup) AS attempts,
       q.next_attempt_at,
       last.outcome AS last_outcome,
       last.error AS last_error,
       answer.http_status, answer.response, named.provider_ref,
       i.created_at,
       CASE WHEN last.next_attempt_at IS NULL THEN last.finished_at END AS finished_at,
       i.id AS intent_id
FROM outbox.intent i
LEFT JOIN outbox.queue q ON q.intent_id = i.id
LEFT JOIN LATERAL (
  SELECT * FROM outbox.attempt a WHERE a.intent_id = i.id ORDER BY a.attempt DESC LIMIT 1
) last ON true
-- What the provider said stays to be read when an operator, or an undo, has had the last word.
LEFT JOIN LATERAL (
  SELECT http_status, response FROM outbox.attempt a
  WHERE a.intent_id = i.id AND a.started_at IS NOT NULL ORDER BY a.attempt DESC LIMIT 1
) answer ON true
LEFT JOIN LATERAL (
  SELECT provider_ref FROM outbox.attempt a
  WHERE a.intent_id = i.id AND a.provider_ref IS NOT NULL ORDER BY a.attempt DESC LIMIT 1
) named ON true;

-- +goose Down
DROP VIEW outbox.status;
