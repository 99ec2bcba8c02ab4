-- +goose Up

-- Every function of this schema names its search_path, with pg_temp at its end. Where pg_temp is not
-- named, Postgres looks for types there first, and a caller's pg_temp.text would run the caller's code.

-- +goose StatementBegin
-- Hashes the four parts as netstrings, and one more netstring for each of ns=, tenant= and gen= that is set.
-- Package dispatch computes the same key. It is PL/pgSQL, because an SQL function could not be inlined (convert_to
-- is only STABLE), and was planned again in every transaction, which took a quarter of the time of an enqueue.
CREATE FUNCTION outbox.idempotency_key(agent_run_id text, step_id text, tool_name text, business_scope text,
                                       namespace text DEFAULT NULL, tenant text DEFAULT NULL, generation int DEFAULT NULL)
RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN 'idem_v1_' || left(encode(sha256(convert_to(
    octet_length(agent_run_id)   || ':' || agent_run_id   || ',' ||
    octet_length(step_id)        || ':' || step_id        || ',' ||
    octet_length(tool_name)      || ':' || tool_name      || ',' ||
    octet_length(business_scope) || ':' || business_scope || ',' ||
    coalesce(3 + octet_length(nullif(namespace, '')) || ':ns=' || namespace || ',', '') ||
    coalesce(7 + octet_length(nullif(tenant, '')) || ':tenant=' || tenant || ',', '') ||
    CASE WHEN generation > 1 THEN 4 + octet_length(generation::text) || ':gen=' || generation || ',' ELSE '' END,
    'UTF8')), 'hex'), 32);
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns the tenant of the caller's login, or null. Raises OB005 for a login with several. It follows the grants,
-- because for pg_has_role a superuser is a member of every role. It does not use current_user, because SET ROLE
-- changes that for anyone who shares the login.
CREATE FUNCTION outbox.session_tenant() RETURNS smallint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  tenants smallint[] := ARRAY(
    WITH RECURSIVE held (role) AS (
      SELECT to_regrole(quote_ident(session_user))::oid
      -- OFFSET and the array keep these index look-ups: joins would read all members and all tenants. From
      -- PostgreSQL 16 on, the creator of a role is a member that may only administer it. Earlier versions lack
      -- these two columns, so the names refer to those of v.
      UNION SELECT m.roleid FROM held CROSS JOIN (VALUES (true, true)) v (inherit_option, set_option)
        CROSS JOIN LATERAL (SELECT roleid FROM pg_auth_members WHERE member = held.role AND (inherit_option OR set_option) OFFSET 0) m)
    SELECT tenant_id FROM outbox.tenant WHERE role = ANY (ARRAY(SELECT pg_get_userbyid(role) FROM held)));
BEGIN
  IF cardinality(tenants) > 1 THEN
    RAISE EXCEPTION 'outbox: the login "%" has the roles of several tenants', session_user
      USING ERRCODE = 'OB005', HINT = 'Grant it the role of one tenant only.';
  END IF;
  RETURN tenants[1];
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Reports whether the caller's login reads every tenant's intents.
CREATE FUNCTION outbox.sees_all() RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM pg_roles WHERE rolname = ANY (ARRAY['outbox_drainer', 'outbox_operator', 'outbox_auditor', current_user])
                 AND pg_has_role(session_user, oid, 'MEMBER'));
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Raises OB005. The error tells no more than that the run id is taken.
CREATE FUNCTION outbox.refuse_stranger() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'outbox: this agent_run_id is taken by another tenant'
    USING ERRCODE = 'OB005', HINT = 'Tenants share one space of run ids: begin yours with your tenant''s name, or make them random.';
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION outbox.set_tenant() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  NEW.tenant := outbox.session_tenant();
  NEW.namespace := coalesce((SELECT t.namespace FROM outbox.tenant t WHERE t.tenant_id = NEW.tenant), NEW.namespace);
  RETURN NEW;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION outbox.refuse_more(tenant text, figure bigint, what text, most bigint, wait_ms bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'outbox: with this the tenant "%" would have % %; its limit is %', tenant, figure, what, most
    USING ERRCODE = 'OB006', HINT = format('Try again in %s s.', greatest(1, ceil(wait_ms / 1000.0)));
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Adds more to a counter, and returns its count in this second. A value of the next second is kept, because this
-- producer may be late. A value further ahead means that the clock was set back, and the counter starts again.
CREATE FUNCTION outbox.count_in_second(counter regclass, more bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  second bigint := floor(extract(epoch FROM clock_timestamp()))::bigint << 24;
  counted bigint;
BEGIN
  IF coalesce(pg_sequence_last_value(counter), 0) NOT BETWEEN second AND second + (2 << 24) - 1 THEN
    PERFORM setval(counter, second);
  END IF;
  FOR i IN 1..more LOOP
    counted := nextval(counter) % (1 << 24);
  END LOOP;
  RETURN counted;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Raises OB006 for intents beyond a tenant's limits. It counts in sequences, because a producer locks a sequence
-- only while it counts; a row would stay locked until the commit. Intents that roll back stay counted until the
-- second is over, or until the queue is measured. If two producers set a sequence at once, it loses the counts of
-- a moment. The first producer whose time has come measures the queue: at most once a second, at most for a
-- twentieth of the time, and at least every ten minutes.
CREATE FUNCTION outbox.keep_limits(own smallint, intents bigint, bytes bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  t outbox.tenant;
  counter text := 'outbox.tenant_' || own || '_';
  now_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
  measure_ms bigint;
  due bigint;
  queued bigint;
BEGIN
  SELECT * INTO t FROM outbox.tenant WHERE tenant_id = own;
  IF t.max_rate IS NOT NULL THEN
    due := outbox.count_in_second((counter || 'rate')::regclass, intents);
    IF greatest(due, intents) > t.max_rate THEN
      PERFORM outbox.refuse_more(t.name, greatest(due, intents), 'intents in this second', t.max_rate, 1000 - now_ms % 1000);
    END IF;
  END IF;
  IF num_nonnulls(t.max_due, t.max_bytes) = 0 THEN
    RETURN;
  END IF;
  measure_ms := coalesce(pg_sequence_last_value((counter || 'measure')::regclass), 0);
  IF measure_ms NOT BETWEEN now_ms + 1 AND now_ms + 600000 THEN
    PERFORM setval((counter || 'measure')::regclass, now_ms + 1000);
    WITH RECURSIVE lane AS (
      (SELECT provider FROM outbox.queue ORDER BY provider LIMIT 1)
      UNION ALL
      SELECT (SELECT q.provider FROM outbox.queue q WHERE q.provider > lane.provider ORDER BY q.provider LIMIT 1)
      FROM lane WHERE lane.provider IS NOT NULL)
    SELECT coalesce(sum(l.due), 0), coalesce(sum(l.queued), 0) INTO due, queued
    FROM lane CROSS JOIN LATERAL (
      SELECT count(*) FILTER (WHERE q.next_attempt_at <= clock_timestamp()) AS due, sum(q.bytes) AS queued
      FROM outbox.queue q WHERE q.provider = lane.provider AND q.tenant = own) l;
    measure_ms := now_ms + least(600000, greatest(1000, 20 * (extract(epoch FROM clock_timestamp()) * 1000 - now_ms)));
    PERFORM setval((counter || 'due')::regclass, due), setval((counter || 'bytes')::regclass, queued),
            setval((counter || 'measure')::regclass, measure_ms);
  END IF;
  due := coalesce(pg_sequence_last_value((counter || 'due')::regclass), 0) + intents;
  queued := coalesce(pg_sequence_last_value((counter || 'bytes')::regclass), 0) + bytes;
  IF due > t.max_due THEN
    PERFORM outbox.refuse_more(t.name, due, 'intents that are due', t.max_due, measure_ms - now_ms);
  ELSIF queued > t.max_bytes THEN
    PERFORM outbox.refuse_more(t.name, queued, 'bytes in the queue', t.max_bytes, measure_ms - now_ms);
  END IF;
  FOR i IN 1..intents LOOP
    due := nextval((counter || 'due')::regclass);
  END LOOP;
  PERFORM setval((counter || 'bytes')::regclass, queued);
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Keeps a run to the tenant that began it. The unique row of the run makes transactions that begin it at the same
-- moment wait for each other. If a run is older than the tenants, or a prune deleted its row, its earlier steps
-- tell its tenant. An existing row is locked until the commit, because a prune does not see the new step yet. If a
-- prune deleted the row first, the row is inserted again. No statement has an array for a parameter: Postgres
-- would plan it again in each call, which took as long as the rest of enqueue. No statement joins added in a way
-- that a plan for many rows could execute by reading the whole of outbox.run.
CREATE FUNCTION outbox.keep_walls() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  begun text;
  own smallint;
  intents bigint;
  bytes bigint;
  is_taken boolean;
  is_pruned boolean;
  is_limited boolean;
BEGIN
  LOOP
    FOR begun IN
      INSERT INTO outbox.run (agent_run_id, tenant)
      SELECT DISTINCT agent_run_id, tenant FROM added WHERE compensates IS NULL ORDER BY agent_run_id
      ON CONFLICT DO NOTHING RETURNING agent_run_id
    LOOP
      IF EXISTS (SELECT FROM outbox.run r JOIN outbox.intent i USING (agent_run_id)
                 WHERE r.agent_run_id = begun AND i.tenant IS DISTINCT FROM r.tenant) THEN
        PERFORM outbox.refuse_stranger();
      END IF;
    END LOOP;
    SELECT a.tenant, count(*), sum(payload_bytes + coalesce(octet_length(headers::text), 0)), bool_or(is_others), bool_or(is_others IS NULL),
           (SELECT num_nonnulls(max_due, max_bytes, max_rate) > 0 FROM outbox.tenant WHERE tenant_id = a.tenant)
    INTO own, intents, bytes, is_taken, is_pruned, is_limited
    FROM added a CROSS JOIN LATERAL (
      SELECT (SELECT r.tenant IS DISTINCT FROM a.tenant FROM outbox.run r WHERE r.agent_run_id = a.agent_run_id FOR KEY SHARE) AS is_others OFFSET 0) run
    WHERE compensates IS NULL GROUP BY a.tenant;
    EXIT WHEN is_pruned IS NOT TRUE;
  END LOOP;
  IF is_taken THEN
    PERFORM outbox.refuse_stranger();
  ELSIF is_limited THEN
    BEGIN
      PERFORM outbox.keep_limits(own, intents, bytes);
    EXCEPTION WHEN undefined_table OR internal_error THEN  -- its counters are, or are being, dropped
      IF to_regclass('outbox.tenant_' || own || '_rate') IS NULL THEN
        RAISE EXCEPTION 'outbox: the tenant of this login has been deleted meanwhile'
          USING ERRCODE = 'serialization_failure', HINT = 'Run the transaction again.';
      END IF;
      RAISE;
    END;
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- A disabled trigger costs nothing at enqueue; a look for tenants would cost 4 %. keep_walls runs before
-- queue_intents, as its name sorts first, so that another tenant does not learn whether a run is closed.
CREATE TRIGGER set_tenant BEFORE INSERT ON outbox.intent FOR EACH ROW WHEN (NEW.compensates IS NULL)
  EXECUTE FUNCTION outbox.set_tenant();
CREATE TRIGGER keep_walls AFTER INSERT ON outbox.intent REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.keep_walls();
ALTER TABLE outbox.intent DISABLE TRIGGER set_tenant, DISABLE TRIGGER keep_walls;

-- +goose StatementBegin
-- Enables the walls with the first tenant, and disables them with the last one. That waits for agents' open
-- transactions. A tenant that once had a limit keeps its counters until it is deleted. They are not dropped with
-- its limits, because a producer that saw the limits may be about to count.
CREATE FUNCTION outbox.raise_walls() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
  walled boolean;
  counter text;
BEGIN
  LOCK TABLE outbox.tenant IN SHARE UPDATE EXCLUSIVE MODE;  -- not an advisory lock, which any login could hold
  walled := EXISTS (SELECT FROM outbox.tenant);
  IF walled IS DISTINCT FROM (SELECT tgenabled <> 'D' FROM pg_trigger WHERE tgrelid = 'outbox.intent'::regclass AND tgname = 'set_tenant') THEN
    EXECUTE format('ALTER TABLE outbox.intent %1$s TRIGGER set_tenant, %1$s TRIGGER keep_walls', CASE WHEN walled THEN 'ENABLE' ELSE 'DISABLE' END);
  END IF;
  FOR counter IN
    SELECT format('%s SEQUENCE outbox.%I', CASE WHEN had.name IS NULL THEN 'CREATE' ELSE 'DROP' END, coalesce(had.name, needed.name))
      || CASE WHEN had.name IS NULL THEN ' MINVALUE 0' ELSE '' END
    FROM (SELECT format('tenant_%s_%s', tenant_id, kind), num_nonnulls(max_due, max_bytes, max_rate) > 0 FROM outbox.tenant
          CROSS JOIN unnest(ARRAY['rate', 'repeats', 'due', 'bytes', 'measure']) kind) AS needed (name, is_limited)
    FULL JOIN (SELECT relname::text FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'S'
               AND relname ~ '^tenant_[0-9]+_(rate|repeats|due|bytes|measure)$') AS had (name) USING (name)
    WHERE (had.name IS NULL AND is_limited) OR needed.name IS NULL
  LOOP
    EXECUTE counter;
  END LOOP;
  RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER raise_walls AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.tenant FOR EACH STATEMENT EXECUTE FUNCTION outbox.raise_walls();

-- +goose StatementBegin
-- Records that an intent was enqueued again. Raises OB001 for another payload, and OB005 for another tenant. A
-- tenant's max_rate bounds the rows that this writes in a second. A repeat beyond it gets the same answer without
-- a row, because an agent whose reply was lost may repeat many enqueues at once.
CREATE FUNCTION outbox.record_duplicate(stored outbox.intent, payload jsonb)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  most int;
BEGIN
  IF EXISTS (SELECT FROM outbox.tenant) AND stored.tenant IS DISTINCT FROM outbox.session_tenant() THEN
    PERFORM outbox.refuse_stranger();
  ELSIF stored.payload = payload THEN
    IF stored.tenant IS NOT NULL THEN
      SELECT max_rate INTO most FROM outbox.tenant WHERE tenant_id = stored.tenant;
    END IF;
    IF most IS NOT NULL THEN
      BEGIN
        IF outbox.count_in_second(format('outbox.tenant_%s_repeats', stored.tenant)::regclass, 1) > most THEN
          RETURN;
        END IF;
      EXCEPTION WHEN undefined_table OR internal_error THEN
        NULL;  -- its counters are, or are being, dropped: it has no limit any more
      END;
    END IF;
    INSERT INTO outbox.duplicate (intent_id) VALUES (stored.id);
    RETURN;
  END IF;
  -- nextval alone logs a value that is 32 ahead: after a crash or a failover the difference would count as
  -- collisions.
  PERFORM setval('outbox.collisions', nextval('outbox.collisions')), setval('outbox.last_collision', stored.id);
  RAISE EXCEPTION 'outbox: this key already belongs to an intent with another payload'
    USING ERRCODE = 'OB001',
          DETAIL = (SELECT format('Intent %s holds the key %s and is %s.', stored.id, s.idempotency_key, s.status)
                    FROM outbox.standing s WHERE s.intent_id = stored.id),
          HINT = 'A retry must repeat the payload exactly; another effect needs another step_id or business_scope.';
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Records or refuses a repeated key, which ON CONFLICT DO NOTHING would drop in silence. It disables sequential
-- scans, because a plan that was made while the table was empty is kept, and is quadratic in a bulk insert.
-- outbox.proposed counts the rows that the running INSERT offered and whose keys no committed intent had. Any
-- client can set it, so its value begins with the id of its transaction. So a value that another client left on a
-- pooled connection is ignored, and a client that forges the value loses only its own rows.
CREATE FUNCTION outbox.catch_duplicate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  stored outbox.intent;
  ours text := pg_current_xact_id()::text || ':';
  proposed text := current_setting('outbox.proposed', true);
BEGIN
  SELECT * INTO stored FROM outbox.intent i
  WHERE (i.agent_run_id, i.step_id, i.tool_name, i.business_scope)
      = (NEW.agent_run_id, NEW.step_id, NEW.tool_name, NEW.business_scope)
  FOR KEY SHARE;  -- waits for a prune: an intent that it deletes is enqueued as new
  IF NOT FOUND THEN
    NEW.namespace := coalesce((SELECT p.namespace FROM outbox.provider p WHERE p.name = split_part(NEW.tool_name, '/', 1)),
                              (SELECT nullif(s.value, '') FROM outbox.setting s WHERE s.name = 'namespace'));
    PERFORM set_config('outbox.proposed', ours || CASE
      WHEN starts_with(proposed, ours) THEN split_part(proposed, ':', 2)::int + 1 ELSE 1 END, true);
    RETURN NEW;
  END IF;
  PERFORM outbox.record_duplicate(stored, NEW.payload);
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- enqueue() handles its own duplicates, including those of concurrent transactions. Any client can set
-- outbox.enqueueing, so it is respected only if the owner inserts, as in enqueue(). Undos come from daemons only:
-- a daemon sets their namespace, and a repeated undo fails its statement.
CREATE TRIGGER catch_duplicate BEFORE INSERT ON outbox.intent FOR EACH ROW
  WHEN (NEW.compensates IS NULL AND (current_setting('outbox.enqueueing', true) IS DISTINCT FROM 'on'
        OR NOT has_table_privilege('outbox.intent'::regclass, 'DELETE')))
  EXECUTE FUNCTION outbox.catch_duplicate();

-- +goose StatementBegin
-- Raises OB004 for a tool that no daemon serves, although daemons announced tools of its provider: an intent with
-- a misspelt name would wait forever. The nearest name shares the most letters with it at both ends. It is
-- suggested if at most a third of the operation's letters differ, or two that may have changed places.
CREATE FUNCTION outbox.refuse_unknown_tool(tool text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  nearest text;
  missed int;
  letters int;
BEGIN
  IF (SELECT s.value FROM outbox.setting s WHERE s.name = 'unknown_tools') = 'accept' THEN
    RETURN;
  END IF;
  SELECT t.name, greatest(length(t.name), length(tool)) - least(length(t.name), length(tool), (
           SELECT count(*) FILTER (WHERE left(t.name, n) = left(tool, n)) + count(*) FILTER (WHERE right(t.name, n) = right(tool, n))
           FROM generate_series(1, least(length(t.name), length(tool))) n))
  INTO nearest, missed
  FROM (SELECT name FROM outbox.tool t WHERE t.provider = split_part(tool, '/', 1) ORDER BY name LIMIT 1000) t
  ORDER BY 2, 1 LIMIT 1;
  letters := length(nearest) - length(split_part(nearest, '/', 1)) - 1;
  RAISE EXCEPTION 'outbox: no daemon serves the tool "%"', tool
    USING ERRCODE = 'OB004',
          HINT = CASE WHEN missed < letters AND missed <= greatest(2, letters / 3) THEN format('Did you mean "%s"? ', nearest) ELSE '' END ||
                 'Add it to the daemons'' configuration, or let the schema''s owner set unknown_tools to accept.';
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION outbox.queue_intents() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ours text := pg_current_xact_id()::text || ':';
  proposed text := current_setting('outbox.proposed', true);
  woken text;  -- the lanes that the running transaction wakes when it commits
  waiting text;
  place tid;
  unknown text := (
    SELECT a.tool_name FROM added a
    WHERE a.compensates IS NULL AND (SELECT t.name FROM outbox.tool t WHERE t.name = a.tool_name) IS NULL
      AND (SELECT t.name FROM outbox.tool t WHERE t.provider = a.provider LIMIT 1) IS NOT NULL
    LIMIT 1);
BEGIN
  IF unknown IS NOT NULL THEN
    PERFORM outbox.refuse_unknown_tool(unknown);
  END IF;
  IF starts_with(proposed, ours) THEN
    IF split_part(proposed, ':', 2)::int > (SELECT count(*) FROM added) THEN  -- a twin committed in between; a retry compares with it
      RAISE EXCEPTION 'outbox: another transaction committed the same key at the same moment'
        USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction, or call outbox.enqueue, which waits and compares.';
    END IF;
    PERFORM set_config('outbox.proposed', '', true);
  END IF;
  IF EXISTS (SELECT FROM added a JOIN outbox.saga s USING (agent_run_id) WHERE a.compensates IS NULL) THEN
    RAISE EXCEPTION 'outbox: this agent run is closed: it is, or was, compensated or cancelled'
      USING ERRCODE = 'OB002', HINT = 'Start a new run.';
  END IF;
  INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, bytes, tenant, era)
  SELECT provider, greatest(created_at, not_before), a.id, agent_run_id, payload_bytes + coalesce(octet_length(headers::text), 0), coalesce(tenant, 0),
         -- an undo may be enqueued again because the database forgot the first one: its era is then the last one
         -- in doubt
         coalesce(CASE WHEN compensates <= doubted_through THEN doubted_before - 1 ELSE era END, 0)
  FROM added a LEFT JOIN (SELECT era, doubted_before, doubted_through FROM outbox.history ORDER BY id DESC LIMIT 1) h ON true;
  IF EXISTS (SELECT FROM outbox.provider WHERE idle_until > now()) THEN
    woken := current_setting('outbox.wakes', true);
    woken := CASE WHEN starts_with(woken, ours) THEN substr(woken, length(ours) + 1) ELSE '{}' END;
    FOR waiting IN SELECT name FROM outbox.provider
      WHERE idle_until > now() AND name <> ALL (woken::text[])
        AND name IN (SELECT provider FROM added WHERE coalesce(not_before <= clock_timestamp(), true))
    LOOP
      woken := (woken::text[] || waiting)::text;
      PERFORM set_config('outbox.wakes', ours || woken, true);
      INSERT INTO outbox.wake_up VALUES (waiting) RETURNING ctid INTO place;
      DELETE FROM outbox.wake_up WHERE ctid = place;  -- its trigger still runs at commit
    END LOOP;
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER queue_intents AFTER INSERT ON outbox.intent REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.queue_intents();

-- +goose StatementBegin
-- Notifies the lane. Postgres lets transactions that notify commit one after the other, each when the one before
-- is on disk. So of those that commit at once only one notifies, and the lane that it wakes looks for the rows of
-- the others. The next 50 ms get a notification of their own, because the first commit may wait for a standby, or
-- for another check. Any login may fill the server's queue of notifications, and a commit that notifies then
-- fails. So if that queue is half full, the lane has to poll.
CREATE FUNCTION outbox.wake_lane() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF pg_try_advisory_xact_lock(hashtextextended(
       'outbox/wake/' || NEW.provider || floor(20 * extract(epoch FROM clock_timestamp())), 0))
     AND pg_notification_queue_usage() < 0.5 THEN
    PERFORM pg_notify('outbox', NEW.provider);
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- Deferred, so that a transaction that stays open, or rolls back, does not keep others from waking the lane.
CREATE CONSTRAINT TRIGGER wake_lane AFTER INSERT ON outbox.wake_up DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION outbox.wake_lane();

-- +goose StatementBegin
-- Enqueues an intent, which is dispatched after the caller's transaction commits. If the key exists already, it
-- creates nothing and returns the intent's present status. Raises OB001 for another payload, OB002 for a run that
-- is, or was, compensated or cancelled, OB003 for arguments that cannot make an intent (and with require_state for
-- a transaction that has written nothing before), OB004 for a tool that its provider's daemons do not serve, OB005
-- for a run of another tenant, and OB006 beyond a limit of the caller's tenant.
CREATE FUNCTION outbox.enqueue(agent_run_id text, step_id text, tool_name text, business_scope text, payload jsonb,
                               not_before timestamptz DEFAULT NULL, headers jsonb DEFAULT NULL)
RETURNS TABLE (intent_id bigint, created boolean, status text, idempotency_key text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  stored outbox.intent;
  own_namespace text;
  own_generation int;
BEGIN
  IF (least(octet_length($1), octet_length($2), octet_length($3), octet_length($4)) > 0
      AND greatest(octet_length($1), octet_length($2), octet_length($3), octet_length($4)) <= 255
      AND num_nulls($1, $2, $3, $4) = 0) IS NOT TRUE THEN
    RAISE EXCEPTION 'outbox: %', (
      SELECT format('%s is %s', part.name,
                    coalesce(nullif(octet_length(part.value), 0) || ' bytes long; at most 255 are allowed', 'empty'))
      FROM (VALUES ('agent_run_id', $1), ('step_id', $2), ('tool_name', $3), ('business_scope', $4)) AS part (name, value)
      WHERE (octet_length(part.value) BETWEEN 1 AND 255) IS NOT TRUE LIMIT 1)
      USING ERRCODE = 'OB003';
  ELSIF starts_with($2, 'compensate:') THEN
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
  IF pg_current_xact_id_if_assigned() IS NULL THEN  -- this transaction has written nothing
    CASE (SELECT s.value FROM outbox.setting s WHERE s.name = 'require_state')
      WHEN 'error' THEN
        RAISE EXCEPTION 'outbox: nothing was written before this enqueue in its transaction' USING ERRCODE = 'OB003',
          HINT = 'Write the agent''s own state first, in the same transaction, or let the schema''s owner set require_state to off.';
      WHEN 'warn' THEN
        RAISE WARNING 'outbox: nothing was written before this enqueue in its transaction'
          USING HINT = 'Write the agent''s own state first, in the same transaction.';
      ELSE NULL;
    END CASE;
  END IF;

  PERFORM set_config('outbox.enqueueing', 'on', true);
  LOOP
    INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, not_before, headers, namespace)
    VALUES ($1, $2, $3, $4, $5, $6, $7,
            coalesce((SELECT p.namespace FROM outbox.provider p WHERE p.name = split_part($3, '/', 1)),
                     (SELECT nullif(s.value, '') FROM outbox.setting s WHERE s.name = 'namespace')))
    ON CONFLICT DO NOTHING RETURNING id, namespace INTO intent_id, own_namespace;  -- waits for a twin that has not committed yet
    created := FOUND;
    EXIT WHEN created;
    SELECT * INTO stored FROM outbox.intent i
    WHERE (i.agent_run_id, i.step_id, i.tool_name, i.business_scope) = ($1, $2, $3, $4)
    FOR KEY SHARE;
    EXIT WHEN FOUND;  -- else it was pruned in between
  END LOOP;
  PERFORM set_config('outbox.enqueueing', '', true);

  status := 'pending';
  IF NOT created THEN
    PERFORM outbox.record_duplicate(stored, $5);
    intent_id := stored.id;
    own_namespace := stored.namespace;
    own_generation := (SELECT g.generation FROM outbox.generation g WHERE g.intent_id = stored.id);
    SELECT s.status INTO STRICT status FROM outbox.standing s WHERE s.intent_id = stored.id;
  END IF;
  idempotency_key := outbox.idempotency_key($1, $2, $3, $4, own_namespace, NULL, own_generation);
  RETURN NEXT;
END $$;
-- +goose StatementEnd

-- +goose Down
DELETE FROM outbox.tenant;  -- and its counters
DROP FUNCTION outbox.enqueue;
DROP TRIGGER wake_lane ON outbox.wake_up;
DROP TRIGGER queue_intents ON outbox.intent;
DROP TRIGGER catch_duplicate ON outbox.intent;
DROP TRIGGER set_tenant ON outbox.intent;
DROP TRIGGER keep_walls ON outbox.intent;
DROP TRIGGER raise_walls ON outbox.tenant;
DROP FUNCTION outbox.wake_lane, outbox.queue_intents, outbox.refuse_unknown_tool, outbox.catch_duplicate, outbox.record_duplicate, outbox.raise_walls, outbox.keep_walls, outbox.keep_limits, outbox.count_in_second, outbox.refuse_more,
  outbox.set_tenant, outbox.refuse_stranger, outbox.sees_all, outbox.session_tenant, outbox.idempotency_key;
