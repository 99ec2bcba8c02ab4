-- +goose Up

-- +goose StatementBegin
-- Roles belong to the whole cluster, so the migration of another database may create them at the same time.
DO $$
DECLARE
  missing text;
BEGIN
  FOREACH missing IN ARRAY ARRAY['outbox_agent', 'outbox_drainer', 'outbox_operator', 'outbox_auditor'] LOOP
    CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = missing);
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN', missing);
    EXCEPTION
      WHEN duplicate_object OR unique_violation THEN NULL;
      WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'outbox: role % does not exist and % may not create it', missing, current_user
          USING ERRCODE = 'insufficient_privilege',
                HINT = 'Have an administrator run CREATE ROLE outbox_agent NOLOGIN; CREATE ROLE outbox_drainer NOLOGIN; CREATE ROLE outbox_operator NOLOGIN; CREATE ROLE outbox_auditor NOLOGIN;';
    END;
  END LOOP;
END $$;
-- +goose StatementEnd

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
GRANT USAGE ON SCHEMA outbox TO outbox_agent, outbox_drainer, outbox_operator, outbox_auditor;
GRANT EXECUTE ON FUNCTION outbox.idempotency_key, outbox.sees_all, outbox.session_tenant TO outbox_agent, outbox_drainer, outbox_operator, outbox_auditor;
GRANT EXECUTE ON FUNCTION outbox.queued_tenants, outbox.whereabouts, outbox.in_doubt TO outbox_drainer, outbox_operator, outbox_auditor;

-- Agents enqueue, and read the status of their intents.
GRANT EXECUTE ON FUNCTION outbox.enqueue TO outbox_agent;
GRANT INSERT (agent_run_id, step_id, tool_name, business_scope, payload, headers, not_before)
  ON outbox.intent TO outbox_agent;
GRANT SELECT ON outbox.status, outbox.tool TO outbox_agent;
GRANT EXECUTE ON FUNCTION outbox.await, outbox.arm TO outbox_agent;  -- await has its caller's rights

-- Daemons move rows of the queue and append to the history. Except by outbox.prune, they cannot change or delete
-- intents and attempts.
GRANT SELECT ON outbox.intent, outbox.queue, outbox.claim, outbox.attempt, outbox.worker, outbox.provider, outbox.tool,
                outbox.duplicate, outbox.saga, outbox.incident, outbox.page, outbox.watermark, outbox.setting, outbox.tenant, outbox.forgotten, outbox.generation, outbox.history, outbox.run, outbox.standing, outbox.status,
                outbox.collisions, outbox.last_collision, outbox.goose_db_version TO outbox_drainer, outbox_operator, outbox_auditor;
GRANT INSERT (agent_run_id, step_id, tool_name, business_scope, payload, headers, not_before, compensates, namespace, tenant)
  ON outbox.intent TO outbox_drainer;
GRANT INSERT, DELETE, UPDATE (provider) ON outbox.queue TO outbox_drainer;  -- FOR UPDATE needs the right UPDATE
GRANT INSERT, DELETE, UPDATE (intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias) ON outbox.claim TO outbox_drainer;
GRANT INSERT (intent_id, attempt, worker, started_at, finished_at, outcome, status, next_attempt_at, http_status, error, provider_ref,
              response, response_headers, problem, retry_after_seconds, replayed, lookup, served_by)
  ON outbox.attempt TO outbox_drainer;
GRANT INSERT, UPDATE, DELETE ON outbox.worker TO outbox_drainer;
GRANT SELECT ON outbox.fingerprint_key TO outbox_drainer;  -- operators and auditors, who read fingerprints, must not have it
GRANT INSERT (name), UPDATE (seen_at, state, reason, open_until, prober, shut_at, refused_at, refused_intent, rendered), DELETE ON outbox.tool TO outbox_drainer;
GRANT INSERT (name, namespace), UPDATE (idle_until, state, reason, open_until, prober, shut_at, refused_at, refused_intent, namespace) ON outbox.provider TO outbox_drainer;
GRANT INSERT (agent_run_id, cause), UPDATE (state, ended_at, moves_at, passes, leased_until, plan, place, ready) ON outbox.saga TO outbox_drainer;
GRANT INSERT (kind, intent_id, agent_run_id, detail), UPDATE (detail, opened_at, resolved_at, resolved_by) ON outbox.incident TO outbox_drainer;
GRANT INSERT, UPDATE ON outbox.page, outbox.watermark TO outbox_drainer;
GRANT INSERT (id, system_identifier, timeline, lsn, table_oid, database_oid, change, awaited, era, doubted_before, doubted_through, accepted_by, accepted_at),
      UPDATE (system_identifier, timeline, lsn, seen_at, awaited, found, lost, era, doubted_before, doubted_through, accepted_by, accepted_at)
  ON outbox.history TO outbox_drainer;
GRANT EXECUTE ON FUNCTION outbox.room_in_flight TO outbox_drainer;

-- Operators decide on intents and incidents. They sign in columns that no daemon can write, and they cannot write
-- the daemons' columns. They change runs and providers by function.
GRANT INSERT, DELETE, UPDATE (provider) ON outbox.queue TO outbox_operator;
GRANT INSERT, UPDATE ON outbox.generation TO outbox_operator;
GRANT INSERT (intent_id, attempt, operator, outcome, status, next_attempt_at, provider_ref, reason) ON outbox.attempt TO outbox_operator;
GRANT UPDATE (moves_at, plan) ON outbox.saga TO outbox_operator;  -- a decision on a step makes its saga plan again
GRANT UPDATE (acknowledged_at, acknowledged_by, reason, resolved_at, resolved_by) ON outbox.incident TO outbox_operator;

-- +goose Down

-- +goose StatementBegin
-- A role stays while it has a member, or rights in another database.
DO $$
DECLARE
  unused text;
BEGIN
  REVOKE ALL ON SCHEMA outbox FROM outbox_agent, outbox_drainer, outbox_operator, outbox_auditor;
  REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM outbox_agent, outbox_drainer, outbox_operator, outbox_auditor;
  REVOKE ALL ON ALL SEQUENCES IN SCHEMA outbox FROM outbox_agent, outbox_drainer, outbox_operator, outbox_auditor;
  REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM outbox_agent, outbox_drainer, outbox_operator, outbox_auditor;
  FOREACH unused IN ARRAY ARRAY['outbox_agent', 'outbox_drainer', 'outbox_operator', 'outbox_auditor'] LOOP
    CONTINUE WHEN EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid WHERE r.rolname = unused);
    BEGIN
      EXECUTE format('DROP ROLE %I', unused);
    EXCEPTION
      WHEN dependent_objects_still_exist OR insufficient_privilege OR undefined_object THEN NULL;
    END;
  END LOOP;
END $$;
-- +goose StatementEnd
