CREATE SCHEMA inbox;

CREATE TABLE inbox.message (
    agent_run_id    text        NOT NULL,
    step_id         text        NOT NULL,
    tool_name       text        NOT NULL,
    business_scope  text        NOT NULL,
    idempotency_key text        NOT NULL,
    payload         jsonb       NOT NULL,
    headers         jsonb       NOT NULL,
    received_at     timestamptz NOT NULL DEFAULT now(),
    consumed_at     timestamptz,
    PRIMARY KEY (agent_run_id, step_id, tool_name, business_scope)
);

CREATE INDEX message_waiting ON inbox.message (received_at) WHERE consumed_at IS NULL;
