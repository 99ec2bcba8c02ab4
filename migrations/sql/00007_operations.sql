-- +goose Up

-- Append-only: operators' actions on a provider or on a whole run. Their actions on an intent are in
-- outbox.attempt. Only the functions below write here.
CREATE TABLE outbox.operation (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  done_at      timestamptz NOT NULL DEFAULT now(),
  operator     text NOT NULL CHECK (starts_with(operator, 'operator:')),  -- 'operator:NAME', with the name that the operator gives
  login        text NOT NULL DEFAULT session_user,
  action       text NOT NULL CHECK (action IN ('pause', 'resume', 'cancel_run', 'compensate', 'retry_saga', 'resolve_saga', 'reveal')),
  provider     text COLLATE "C",
  agent_run_id text COLLATE "C",
  reason       text NOT NULL,
  CHECK (num_nonnulls(provider, agent_run_id) = 1)
);
CREATE INDEX operation_provider ON outbox.operation (provider, id) WHERE provider IS NOT NULL;

-- +goose StatementBegin
-- Pauses or resumes a provider, and reports whether that changed anything. A provider that no worker announced can
-- be paused while rows wait for it. A resume also ends the cool-down of open circuit breakers, so that one row
-- probes at once.
CREATE FUNCTION outbox.operate_provider(provider text, pause boolean, operator text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  changed boolean := false;
BEGIN
  IF NOT $2 THEN
    UPDATE outbox.tool SET open_until = clock_timestamp() WHERE provider = $1 AND state = 'open' AND open_until > clock_timestamp();
    changed := FOUND;
    UPDATE outbox.provider SET open_until = clock_timestamp() WHERE name = $1 AND state = 'open' AND open_until > clock_timestamp();
    changed := changed OR FOUND;
  END IF;
  INSERT INTO outbox.provider AS p (name, paused)
  SELECT $1, $2
  WHERE EXISTS (SELECT FROM outbox.provider WHERE name = $1)
     OR ($2 AND EXISTS (SELECT FROM outbox.queue WHERE provider = $1))
  ON CONFLICT (name) DO UPDATE SET paused = excluded.paused WHERE p.paused <> excluded.paused;
  IF NOT (FOUND OR changed) THEN
    RETURN false;
  END IF;
  INSERT INTO outbox.operation (operator, action, provider, reason) VALUES ($3, CASE WHEN $2 THEN 'pause' ELSE 'resume' END, $1, $4);
  RETURN true;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Cancels a run, or changes its saga, or records that its payloads were read, and reports whether it did. From the
-- commit on a closed run takes no further step, and no claim that starts later dispatches its waiting steps.
CREATE FUNCTION outbox.operate_run(agent_run_id text, action text, operator text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  CASE $2
  WHEN 'cancel_run' THEN
    INSERT INTO outbox.saga (agent_run_id, state, ended_at, changed_by, reason)
    SELECT $1, 'cancelled', now(), $3, $4 WHERE EXISTS (SELECT FROM outbox.intent WHERE agent_run_id = $1)
    ON CONFLICT DO NOTHING;
  WHEN 'compensate' THEN  -- also a run that was cancelled before
    INSERT INTO outbox.saga AS s (agent_run_id, changed_by, reason)
    SELECT $1, $3, $4 WHERE EXISTS (SELECT FROM outbox.intent WHERE agent_run_id = $1)
    ON CONFLICT (agent_run_id) DO UPDATE
    SET state = 'begun', begun_at = now(), ended_at = NULL, moves_at = now(), passes = 0, plan = NULL,
        changed_by = excluded.changed_by, reason = excluded.reason, login = session_user
    WHERE s.state = 'cancelled';
  WHEN 'retry_saga' THEN
    UPDATE outbox.saga SET state = 'begun', epoch = epoch + 1, ended_at = NULL, moves_at = now(), passes = 0, plan = NULL,
        changed_by = $3, reason = $4, login = session_user
    WHERE agent_run_id = $1 AND state = 'compensation_failed';
  WHEN 'resolve_saga' THEN
    UPDATE outbox.saga SET state = 'resolved', ended_at = now(), changed_by = $3, reason = $4, login = session_user
    WHERE agent_run_id = $1 AND state IN ('begun', 'compensation_failed');
  WHEN 'reveal' THEN  -- an operator looks at a payload and at responses of the run
    PERFORM FROM outbox.intent WHERE agent_run_id = $1 LIMIT 1;
  END CASE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  INSERT INTO outbox.operation (operator, action, agent_run_id, reason) VALUES ($3, $2, $1, $4);
  RETURN true;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Ends the wait for a human after commits may have been lost, and reports whether there was one. lossless means
-- that no commit was lost: rows that were queued before are then in no doubt. Raises
-- object_not_in_prerequisite_state if a daemon misses commits and lossless is true.
CREATE FUNCTION outbox.accept_history(history int, lossless boolean, operator text, reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE outbox.history h SET accepted_by = $3, accepted_at = clock_timestamp(), reason = $4, login = session_user,
    era = h.era + 1,
    doubted_before = CASE WHEN $2 THEN coalesce((SELECT b.doubted_before FROM outbox.history b WHERE b.id < $1 ORDER BY b.id DESC LIMIT 1), 0)
                          ELSE h.era + 1 END,
    doubted_through = CASE WHEN $2 THEN coalesce((SELECT b.doubted_through FROM outbox.history b WHERE b.id < $1 ORDER BY b.id DESC LIMIT 1), 0)
                           ELSE h.doubted_through END
  -- A daemon that reported lost commits does not report them again, so nothing would correct a wrong acceptance.
  WHERE h.id = $1 AND h.accepted_by IS NULL AND NOT ($2 AND h.lost) AND NOT EXISTS (SELECT FROM outbox.history n WHERE n.id > $1);
  IF NOT FOUND THEN
    IF $2 AND EXISTS (SELECT FROM outbox.history h WHERE h.id = $1 AND h.accepted_by IS NULL AND h.lost) THEN
      RAISE EXCEPTION 'outbox: a daemon misses commits of history %', $1
        USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Accept it as one that may lack commits: lossless = false.';
    END IF;
    RETURN false;
  END IF;
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = $3 WHERE kind = 'history_changed' AND resolved_at IS NULL;
  RETURN true;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Refuses an operator's decision that does not come from the functions above, which run as the owner.
CREATE FUNCTION outbox.only_operators_end() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
    RAISE EXCEPTION 'outbox: only an operator %', TG_ARGV[0]
      USING ERRCODE = 'insufficient_privilege', HINT = format('Call %s with a login that has the role outbox_operator.', TG_ARGV[1]);
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd

CREATE TRIGGER only_operators_end BEFORE UPDATE OF state ON outbox.saga FOR EACH ROW
  WHEN (NEW.state IN ('cancelled', 'resolved') AND NEW.state <> OLD.state)
  EXECUTE FUNCTION outbox.only_operators_end('cancels a run or resolves a saga', 'outbox.operate_run');
CREATE TRIGGER only_operators_begin BEFORE INSERT ON outbox.history FOR EACH ROW
  WHEN (starts_with(NEW.accepted_by, 'operator:'))
  EXECUTE FUNCTION outbox.only_operators_end('accepts a history under the name operator:NAME', 'outbox.accept_history');
CREATE TRIGGER only_operators_accept BEFORE UPDATE OF accepted_by ON outbox.history FOR EACH ROW
  WHEN (starts_with(NEW.accepted_by, 'operator:') AND NEW.accepted_by IS DISTINCT FROM OLD.accepted_by)
  EXECUTE FUNCTION outbox.only_operators_end('accepts a history under the name operator:NAME', 'outbox.accept_history');

-- +goose StatementBegin
-- Daemons and operators both resolve incidents. Neither can sign as the other, no decision is without a name, and
-- a decision stays until the incident opens again. The login is recorded beside the name.
CREATE FUNCTION outbox.sign_incident() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  operates boolean := pg_has_role(session_user, 'outbox_operator', 'MEMBER');
BEGIN
  IF operates = pg_has_role(session_user, 'outbox_drainer', 'MEMBER') THEN  -- the login has both roles or neither, as the owner does
    NEW.login := session_user;
    RETURN NEW;
  END IF;
  IF OLD.resolved_at IS NOT NULL
     OR num_nonnulls(OLD.acknowledged_at, OLD.acknowledged_by) > 0
        AND (NEW.acknowledged_at, NEW.acknowledged_by, NEW.reason) IS DISTINCT FROM (OLD.acknowledged_at, OLD.acknowledged_by, OLD.reason) THEN
    RAISE EXCEPTION 'outbox: it is decided already; an incident can be decided again only after it opens again'
      USING ERRCODE = 'insufficient_privilege';
  ELSIF (NEW.acknowledged_at, NEW.acknowledged_by) IS DISTINCT FROM (OLD.acknowledged_at, OLD.acknowledged_by)
          AND starts_with(NEW.acknowledged_by, 'operator:') IS NOT TRUE
     OR (NEW.resolved_at, NEW.resolved_by) IS DISTINCT FROM (OLD.resolved_at, OLD.resolved_by)
          AND operates IS DISTINCT FROM starts_with(NEW.resolved_by, 'operator:') THEN
    RAISE EXCEPTION 'outbox: an incident is decided by an operator under the name operator:NAME, and by a daemon under no such name'
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  NEW.login := session_user;
  RETURN NEW;
END $$;
-- +goose StatementEnd

CREATE TRIGGER sign_incident BEFORE UPDATE OF acknowledged_at, acknowledged_by, reason, resolved_at, resolved_by ON outbox.incident
  FOR EACH ROW EXECUTE FUNCTION outbox.sign_incident();

REVOKE ALL ON FUNCTION outbox.operate_provider, outbox.operate_run, outbox.accept_history, outbox.only_operators_end, outbox.sign_incident FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.operate_provider, outbox.operate_run, outbox.accept_history TO outbox_operator;
GRANT SELECT ON outbox.operation TO outbox_drainer, outbox_operator, outbox_auditor;

-- +goose Down
DROP TRIGGER sign_incident ON outbox.incident;
DROP TRIGGER only_operators_end ON outbox.saga;
DROP TRIGGER only_operators_begin ON outbox.history;
DROP TRIGGER only_operators_accept ON outbox.history;
DROP FUNCTION outbox.sign_incident, outbox.only_operators_end, outbox.accept_history, outbox.operate_run, outbox.operate_provider;
DROP TABLE outbox.operation;
