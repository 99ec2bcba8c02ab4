-- +goose Up

-- The present status of each intent of every tenant, for daemons and operators. An intent that is neither queued
-- nor settled is claimed, so the view need not read the claims, which are slow to search.
CREATE VIEW outbox.standing AS
SELECT i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.provider,
       outbox.idempotency_key(i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.namespace, NULL,
         (SELECT generation FROM outbox.generation g WHERE g.intent_id = i.id)) AS idempotency_key,
       CASE WHEN last.status <> 'pending' THEN last.status
            WHEN q.intent_id IS NULL THEN 'in_progress'
            ELSE 'pending' END AS status,
       -- attempts that may have sent a request: not released ones, nor lookups, nor an operator's decisions
       (SELECT count(*)::int FROM outbox.attempt a
        WHERE a.intent_id = i.id AND a.started_at IS NOT NULL AND NOT a.lookup) AS attempts,
       q.next_attempt_at,
       last.outcome AS last_outcome,
       last.error AS last_error,
       answer.http_status, answer.response, named.provider_ref,
       i.created_at,
       CASE WHEN last.next_attempt_at IS NULL THEN last.finished_at END AS finished_at,
       i.id AS intent_id, i.tenant
FROM outbox.intent i
LEFT JOIN outbox.queue q ON q.intent_id = i.id
LEFT JOIN LATERAL (
  SELECT * FROM outbox.attempt a WHERE a.intent_id = i.id ORDER BY a.attempt DESC LIMIT 1
) last ON true
-- The provider's answer stays readable after an operator, or an undo, has added the newest row. last.attempt > 0 saves
-- an intent without attempts these two look-ups; a wait asks for up to 1,000 such intents at once.
LEFT JOIN LATERAL (
  SELECT http_status, response FROM outbox.attempt a
  WHERE a.intent_id = i.id AND a.started_at IS NOT NULL AND last.attempt > 0 ORDER BY a.attempt DESC LIMIT 1
) answer ON true
LEFT JOIN LATERAL (
  SELECT provider_ref FROM outbox.attempt a
  WHERE a.intent_id = i.id AND a.provider_ref IS NOT NULL AND last.attempt > 0 ORDER BY a.attempt DESC LIMIT 1
) named ON true;

-- The intents of the reader's tenant, for agents. The security barrier keeps the reader's functions from other
-- tenants' rows. It also prevents index look-ups in a join, so the program's own statements read outbox.standing.
CREATE VIEW outbox.status WITH (security_barrier) AS
SELECT agent_run_id, step_id, tool_name, business_scope, provider, idempotency_key, status, attempts, next_attempt_at, last_outcome,
       last_error, http_status, response, provider_ref, created_at, finished_at, intent_id
FROM outbox.standing
WHERE NOT EXISTS (SELECT FROM outbox.tenant) OR (SELECT outbox.sees_all()) OR tenant IS NOT DISTINCT FROM (SELECT outbox.session_tenant());

-- +goose StatementBegin
-- Makes settlements notify for the next 30 s. Each login has one row. The row is written once in 15 s, however
-- many of the login's processes wait, and is deleted after the login. The function does not wait for other
-- transactions. Raises read_only_sql_transaction on a standby.
CREATE FUNCTION outbox.arm() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_is_in_recovery() THEN  -- a standby has no unlogged tables, and may lack committed rows
    RAISE EXCEPTION 'outbox: results are awaited on the primary, and this is a standby' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  IF current_setting('transaction_read_only') = 'on'
     OR EXISTS (SELECT FROM outbox.waiter WHERE login = session_user AND until > clock_timestamp() + interval '15 s')
     OR NOT pg_try_advisory_xact_lock(hashtextextended('outbox/await/' || session_user, 0)) THEN
    RETURN;
  END IF;
  DELETE FROM outbox.waiter WHERE login IN (
    SELECT login FROM outbox.waiter WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = login) FOR UPDATE SKIP LOCKED);
  INSERT INTO outbox.waiter VALUES (session_user, clock_timestamp() + interval '30 s')
  ON CONFLICT (login) DO UPDATE SET until = excluded.until;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns those of the intents that have settled and, with a null status, those that do not exist or that the
-- caller may not see. An intent that is not returned has not settled in the caller's snapshot. Listen on
-- outbox_settled. Call it again after a notification, or every 250 ms, and outside of a transaction. It reads with
-- the caller's rights, so it returns no more than outbox.status.
CREATE FUNCTION outbox.await(ids bigint[])
RETURNS TABLE (intent_id bigint, status text, provider_ref text, response jsonb, last_error text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
  PERFORM outbox.arm();
  RETURN QUERY SELECT asked.id, s.status, s.provider_ref, s.response, s.last_error
    FROM unnest(ids) AS asked (id)
    LEFT JOIN LATERAL (SELECT * FROM outbox.status WHERE intent_id = asked.id LIMIT 1) s ON true  -- LIMIT makes this one look-up for each id
    WHERE s.intent_id IS NULL OR s.finished_at IS NOT NULL;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Notifies waiters. Every settlement appends an attempt. A statement notifies once, without an id, because any
-- login can listen. As in wake_lane, a full queue of notifications must not fail the commit.
CREATE FUNCTION outbox.tell_waiters() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM outbox.waiter WHERE until > clock_timestamp()) AND pg_notification_queue_usage() < 0.5 THEN
    PERFORM pg_notify('outbox_settled', '');
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER tell_waiters AFTER INSERT ON outbox.attempt FOR EACH STATEMENT EXECUTE FUNCTION outbox.tell_waiters();

-- +goose Down
DROP TRIGGER tell_waiters ON outbox.attempt;
DROP FUNCTION outbox.tell_waiters, outbox.await, outbox.arm;
DROP VIEW outbox.status, outbox.standing;
