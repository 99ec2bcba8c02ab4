-- $1 forward intent, $2 tool, $3 payload. A second one meets the unique index.
INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, headers, compensates)
SELECT agent_run_id, 'compensate:' || id, $2::text, business_scope, $3::jsonb, headers, id
FROM outbox.intent WHERE id = $1::bigint;
