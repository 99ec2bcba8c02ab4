-- +goose Up

-- Where each intent of every tenant stands, for daemons and operators. What is neither queued nor settled is claimed, so
-- the claims, slow to search, need not be read.
CREATE VIEW outbox.standing AS
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
       i.id AS intent_id, i.tenant
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

-- What an agent sees of it: its tenant's. Behind the barrier no function of the reader's meets another tenant's row, and
-- a join is not turned into look-ups: so the program's own statements read outbox.standing.
CREATE VIEW outbox.status WITH (security_barrier) AS
SELECT agent_run_id, step_id, tool_name, business_scope, provider, idempotency_key, status, attempts, next_attempt_at, last_outcome,
       last_error, http_status, response, provider_ref, created_at, finished_at, intent_id
FROM outbox.standing
WHERE NOT EXISTS (SELECT FROM outbox.tenant) OR (SELECT outbox.sees_all()) OR tenant IS NOT DISTINCT FROM (SELECT outbox.session_tenant());

-- +goose StatementBegin
-- Has what settles notify for 30 s. A login has one row, which is written once in 15 s however many of its processes
-- wait, and which goes after the login. Nothing here waits for another transaction.
CREATE FUNCTION outbox.arm() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_is_in_recovery() THEN  -- it has no unlogged table, and what it does not see may be committed
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
-- Which of these intents have settled, and those that are not there: their status is null. What is not returned will
-- settle, or is seen by others alone. Listen on outbox_settled, ask again when it tells or every 250 ms, and outside of
-- a transaction. It reads as the caller, so it tells no more than the view.
CREATE FUNCTION outbox.await(ids bigint[])
RETURNS TABLE (intent_id bigint, status text, provider_ref text, response jsonb, last_error text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
  PERFORM outbox.arm();
  RETURN QUERY SELECT asked.id, s.status, s.provider_ref, s.response, s.last_error
    FROM unnest(ids) AS asked (id)
    LEFT JOIN LATERAL (SELECT * FROM outbox.status WHERE intent_id = asked.id LIMIT 1) s ON true  -- LIMIT: one after the other
    WHERE s.intent_id IS NULL OR s.finished_at IS NOT NULL;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Every way to settle appends an attempt. A batch notifies once, without an id, since any login can listen; as in
-- wake_lane, a full queue of notifications must not fail its commit.
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
