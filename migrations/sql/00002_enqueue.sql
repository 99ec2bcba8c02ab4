-- +goose Up

-- +goose StatementBegin
-- The four parts as netstrings, hashed; package dispatch computes the same. As
-- an SQL function it could not be inlined, because convert_to is only STABLE, and
-- was planned anew in every transaction: a quarter of what enqueueing took.
CREATE FUNCTION outbox.idempotency_key(agent_run_id text, step_id text, tool_name text, business_scope text)
RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  RETURN 'idem_v1_' || left(encode(sha256(convert_to(
    octet_length(agent_run_id)   || ':' || agent_run_id   || ',' ||
    octet_length(step_id)        || ':' || step_id        || ',' ||
    octet_length(tool_name)      || ':' || tool_name      || ',' ||
    octet_length(business_scope) || ':' || business_scope || ',', 'UTF8')), 'hex'), 32);
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Records that an intent was enqueued again; another payload is refused.
CREATE FUNCTION outbox.record_duplicate(stored outbox.intent, payload jsonb)
RETURNS void LANGUAGE plpgsql SET search_path = '' AS $$
BEGIN
  IF stored.payload = payload THEN
    INSERT INTO outbox.duplicate (intent_id) VALUES (stored.id);
    RETURN;
  END IF;
  -- What nextval alone writes to the log is 32 ahead: a crash or a failover would count as collisions.
  PERFORM setval('outbox.collisions', nextval('outbox.collisions')), setval('outbox.last_collision', stored.id);
  RAISE EXCEPTION 'outbox: this key already belongs to an intent with another payload'
    USING ERRCODE = 'OB001',
          DETAIL = format('Intent %s holds the key %s.', stored.id, outbox.idempotency_key(
                          stored.agent_run_id, stored.step_id, stored.tool_name, stored.business_scope)),
          HINT = 'A retry must repeat the payload exactly; another effect needs another step_id or business_scope.';
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Rows that the running INSERT offered and that no committed intent forbade.
CREATE FUNCTION outbox.proposed() RETURNS int LANGUAGE sql STABLE AS $$
  SELECT coalesce(nullif(current_setting('outbox.proposed', true), '')::int, 0)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- ON CONFLICT DO NOTHING would drop a repeated key in silence. Without sequential scans, because
-- a plan made while the table was empty is kept, and is quadratic in a bulk insert.
CREATE FUNCTION outbox.catch_duplicate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' SET enable_seqscan = off AS $$
DECLARE
  stored outbox.intent;
BEGIN
  SELECT * INTO stored FROM outbox.intent i
  WHERE (i.agent_run_id, i.step_id, i.tool_name, i.business_scope)
      = (NEW.agent_run_id, NEW.step_id, NEW.tool_name, NEW.business_scope)
  FOR KEY SHARE;  -- what a prune is about to forget is new
  IF NOT FOUND THEN
    PERFORM set_config('outbox.proposed', (outbox.proposed() + 1)::text, true);
    RETURN NEW;
  END IF;
  PERFORM outbox.record_duplicate(stored, NEW.payload);
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- enqueue() looks after its own duplicates, and sees those that race it too.
CREATE TRIGGER catch_duplicate BEFORE INSERT ON outbox.intent FOR EACH ROW
  WHEN (current_setting('outbox.enqueueing', true) IS DISTINCT FROM 'on')
  EXECUTE FUNCTION outbox.catch_duplicate();

-- +goose StatementBegin
-- The lanes that the running transaction wakes as it commits.
CREATE FUNCTION outbox.wakes() RETURNS text[] LANGUAGE sql STABLE AS $$
  SELECT coalesce(nullif(current_setting('outbox.wakes', true), '')::text[], '{}')
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION outbox.queue_intents() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' AS $$
DECLARE
  waiting text;
  place tid;
BEGIN
  IF outbox.proposed() > 0 THEN
    IF outbox.proposed() > (SELECT count(*) FROM added) THEN  -- a twin committed in between: compare with it
      RAISE EXCEPTION 'outbox: another transaction committed the same key at the same moment'
        USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction, or call outbox.enqueue, which waits and compares.';
    END IF;
    PERFORM set_config('outbox.proposed', '', true);
  END IF;
  IF EXISTS (SELECT FROM added a JOIN outbox.saga s USING (agent_run_id) WHERE a.compensates IS NULL) THEN
    RAISE EXCEPTION 'outbox: this agent run is closed: it is, or was, compensated or cancelled'
      USING ERRCODE = 'OB002', HINT = 'Start a new run.';
  END IF;
  INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id)
  SELECT provider, greatest(created_at, not_before), id, agent_run_id FROM added;
  IF EXISTS (SELECT FROM outbox.provider WHERE idle_until > now()) THEN
    FOR waiting IN SELECT name FROM outbox.provider
      WHERE idle_until > now() AND name <> ALL (outbox.wakes())
        AND name IN (SELECT provider FROM added WHERE coalesce(not_before <= clock_timestamp(), true))
    LOOP
      PERFORM set_config('outbox.wakes', (outbox.wakes() || waiting)::text, true);
      INSERT INTO outbox.wake_up VALUES (waiting) RETURNING ctid INTO place;
      DELETE FROM outbox.wake_up WHERE ctid = place;  -- its trigger still comes at commit
    END LOOP;
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER queue_intents AFTER INSERT ON outbox.intent REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.queue_intents();

-- +goose StatementBegin
-- Postgres lets those who notify commit one after the other, each once the one before is on
-- disk. So of those who commit at once one does, and the lane it wakes looks out for the others.
-- It speaks for 50 ms and no longer: its commit may wait for a standby, or for another check.
CREATE FUNCTION outbox.wake_lane() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' AS $$
BEGIN
  IF pg_try_advisory_xact_lock(hashtextextended(
       'outbox/wake/' || NEW.provider || floor(20 * extract(epoch FROM clock_timestamp())), 0)) THEN
    PERFORM pg_notify('outbox', NEW.provider);
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- Deferred, lest a transaction that stays open, or rolls back, keep others from waking the lane.
CREATE CONSTRAINT TRIGGER wake_lane AFTER INSERT ON outbox.wake_up DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION outbox.wake_lane();

-- +goose StatementBegin
CREATE FUNCTION outbox.check_part(name text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF octet_length(value) BETWEEN 1 AND 255 THEN
    RETURN;
  END IF;
  RAISE EXCEPTION 'outbox: % is %', name,
    coalesce(nullif(octet_length(value), 0) || ' octets long; at most 255 are allowed', 'empty')
    USING ERRCODE = 'OB003';
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Commits an effect to be dispatched, with the caller's transaction. The same
-- key again creates nothing and tells where the intent stands. Raises OB001
-- for another payload, OB002 for a run that is, or was, compensated or cancelled
-- and OB003 for arguments that cannot make an intent.
CREATE FUNCTION outbox.enqueue(agent_run_id text, step_id text, tool_name text, business_scope text, payload jsonb,
                               not_before timestamptz DEFAULT NULL, headers jsonb DEFAULT NULL)
RETURNS TABLE (intent_id bigint, created boolean, status text, idempotency_key text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  stored outbox.intent;
BEGIN
  PERFORM outbox.check_part('agent_run_id', $1), outbox.check_part('step_id', $2),
          outbox.check_part('tool_name', $3), outbox.check_part('business_scope', $4);
  IF starts_with($2, 'compensate:') THEN
    RAISE EXCEPTION 'outbox: step_id begins with "compensate:", which is kept for undos' USING ERRCODE = 'OB003';
  ELSIF starts_with($3, '/') THEN
    RAISE EXCEPTION 'outbox: tool_name begins with a slash; write <provider>/<operation>' USING ERRCODE = 'OB003';
  ELSIF $5 IS NULL THEN
    RAISE EXCEPTION 'outbox: payload is null; write the JSON value {} for none' USING ERRCODE = 'OB003';
  ELSIF octet_length($5::text) > 1048576 THEN
    RAISE EXCEPTION 'outbox: payload is longer than 1 MiB of text'
      USING ERRCODE = 'OB003', HINT = 'Keep what is large elsewhere, and enqueue where it is.';
  ELSIF octet_length($7::text) > 65536 THEN
    RAISE EXCEPTION 'outbox: headers are longer than 64 KiB of text' USING ERRCODE = 'OB003';
  ELSIF $6 >= '9999-01-01 00:00:00+00' THEN
    RAISE EXCEPTION 'outbox: not_before is later than the year 9998' USING ERRCODE = 'OB003';
  END IF;

  PERFORM set_config('outbox.enqueueing', 'on', true);
  LOOP
    INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, not_before, headers)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT DO NOTHING RETURNING id INTO intent_id;  -- waits for a twin that has not committed yet
    created := FOUND;
    EXIT WHEN created;
    SELECT * INTO stored FROM outbox.intent i
    WHERE (i.agent_run_id, i.step_id, i.tool_name, i.business_scope) = ($1, $2, $3, $4)
    FOR KEY SHARE;
    EXIT WHEN FOUND;  -- else it was pruned in between
  END LOOP;
  PERFORM set_config('outbox.enqueueing', '', true);

  status := 'pending';
  idempotency_key := outbox.idempotency_key($1, $2, $3, $4);
  IF NOT created THEN
    PERFORM outbox.record_duplicate(stored, $5);
    intent_id := stored.id;
    SELECT s.status INTO STRICT status FROM outbox.status s WHERE s.intent_id = stored.id;
  END IF;
  RETURN NEXT;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION outbox.enqueue, outbox.check_part;
DROP TRIGGER wake_lane ON outbox.wake_up;
DROP TRIGGER queue_intents ON outbox.intent;
DROP TRIGGER catch_duplicate ON outbox.intent;
DROP FUNCTION outbox.wake_lane, outbox.queue_intents, outbox.wakes, outbox.catch_duplicate, outbox.proposed, outbox.record_duplicate, outbox.idempotency_key;
