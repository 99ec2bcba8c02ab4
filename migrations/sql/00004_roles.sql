-- +goose Up

-- +goose StatementBegin
-- Roles belong to the whole cluster, where another database may be migrating.
DO $$
DECLARE
  missing text;
BEGIN
  FOREACH missing IN ARRAY ARRAY['outbox_agent', 'outbox_drainer'] LOOP
    CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = missing);
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN', missing);
    EXCEPTION
      WHEN duplicate_object OR unique_violation THEN NULL;
      WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'outbox: role % does not exist and % may not create it', missing, current_user
          USING ERRCODE = 'insufficient_privilege',
                HINT = 'Have an administrator run CREATE ROLE outbox_agent NOLOGIN; CREATE ROLE outbox_drainer NOLOGIN;';
    END;
  END LOOP;
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
GRANT USAGE ON SCHEMA outbox TO outbox_agent, outbox_drainer;
GRANT EXECUTE ON FUNCTION outbox.idempotency_key TO outbox_agent, outbox_drainer;

-- Agents enqueue and read where their intents stand.
GRANT EXECUTE ON FUNCTION outbox.enqueue TO outbox_agent;
GRANT INSERT (agent_run_id, step_id, tool_name, business_scope, payload, headers, not_before)
  ON outbox.intent TO outbox_agent;
GRANT SELECT ON outbox.status TO outbox_agent;

-- The drainer moves rows and appends. It cannot change or delete an intent, nor what was recorded of one.
GRANT SELECT ON outbox.intent, outbox.queue, outbox.claim, outbox.attempt, outbox.worker, outbox.provider,
                outbox.duplicate, outbox.saga, outbox.incident, outbox.page, outbox.watermark, outbox.status,
                outbox.collisions, outbox.last_collision, outbox.goose_db_version TO outbox_drainer;
GRANT INSERT (agent_run_id, step_id, tool_name, business_scope, payload, headers, not_before, compensates)
  ON outbox.intent TO outbox_drainer;
GRANT INSERT, DELETE, UPDATE (provider) ON outbox.queue, outbox.claim TO outbox_drainer;  -- FOR UPDATE asks for UPDATE
GRANT INSERT ON outbox.attempt, outbox.duplicate TO outbox_drainer;
GRANT INSERT, UPDATE, DELETE ON outbox.worker, outbox.provider TO outbox_drainer;
GRANT INSERT, UPDATE ON outbox.saga, outbox.incident, outbox.page, outbox.watermark TO outbox_drainer;

-- +goose Down

-- +goose StatementBegin
-- A role stays while another database grants it something or a login is its member.
DO $$
DECLARE
  unused text;
BEGIN
  REVOKE ALL ON SCHEMA outbox FROM outbox_agent, outbox_drainer;
  REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM outbox_agent, outbox_drainer;
  REVOKE ALL ON ALL SEQUENCES IN SCHEMA outbox FROM outbox_agent, outbox_drainer;
  REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM outbox_agent, outbox_drainer;
  FOREACH unused IN ARRAY ARRAY['outbox_agent', 'outbox_drainer'] LOOP
    CONTINUE WHEN EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid WHERE r.rolname = unused);
    BEGIN
      EXECUTE format('DROP ROLE %I', unused);
    EXCEPTION
      WHEN dependent_objects_still_exist OR insufficient_privilege OR undefined_object THEN NULL;
    END;
  END LOOP;
END $$;
-- +goose StatementEnd
