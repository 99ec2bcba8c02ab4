-- +goose Up

CREATE INDEX duplicate_intent ON outbox.duplicate (intent_id);
CREATE INDEX incident_intent ON outbox.incident (intent_id);

-- Pruning leaves dead entries at the old end of the indexes, where the next prune starts, so vacuum runs more
-- often.
ALTER TABLE outbox.intent SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE outbox.attempt SET (autovacuum_vacuum_scale_factor = 0.02);

-- +goose StatementBegin
-- Keeps intents from being pruned until the transaction ends, and returns those that still exist. A transaction
-- that adds to a settled intent holds it first, and waits for others that hold it: a plan for a run must not miss
-- a decision that an operator is about to commit. An agent that enqueues its key again locks the intent FOR KEY
-- SHARE, which does not conflict with this lock.
CREATE FUNCTION outbox.hold(intents bigint[]) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT id FROM outbox.intent WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Waits for the transactions that hold the intent, and keeps others from it until this transaction ends. Returns
-- false if the intent was pruned.
CREATE FUNCTION outbox.hold_alone(intent bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT count(*) = 1 FROM (SELECT FROM outbox.intent WHERE id = $1 FOR NO KEY UPDATE) held
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns for how many seconds at least a tool's intents are kept, as the schema's owner decided; 90 days by
-- default.
CREATE FUNCTION outbox.retention_floor(tool text) RETURNS float8
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((
    SELECT extract(epoch FROM value::interval)::float8 FROM outbox.setting
    WHERE name IN ('retention_floor/' || $1, 'retention_floor') ORDER BY name DESC LIMIT 1), 7776000)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Deletes settled intents with all that was recorded about them. It looks at the next looks intents after the id
-- in after, and deletes those that settled at least that many seconds ago, or their own tool's seconds. next is
-- the id from which to continue, or null at the end. Intents that a saga, an unresolved incident or a claim still
-- needs are kept.
--
-- The schema's owner sets the lower bounds of all callers' seconds: the settings retention_floor (90 days unless
-- set) and retention_floor/TOOL.
--
-- While a run is in use, a saga may have to undo any step of it. So an intent stays while its run has an unsettled
-- intent, or has had an intent or an attempt within the longest retention of its tools; but no longer than
-- max_run_seconds.
--
-- Intents that are old enough are locked first, without waiting. A separate statement decides whether they may be
-- deleted: its snapshot is newer than the locks, so it sees intents that an operator retried in between.
CREATE FUNCTION outbox.prune(after bigint, looks int, seconds float8,
                             tools text[] DEFAULT '{}', tool_seconds float8[] DEFAULT '{}',
                             max_run_seconds float8 DEFAULT 31536000)
RETURNS TABLE (pruned int, next bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $$  -- plans for a table that has grown; the cost of a scan must not start JIT
DECLARE
  floor float8 := outbox.retention_floor('');
  usual float8 := greatest(seconds, floor);
  kept jsonb;  -- seconds, by tool
  shortest float8;
  aged bigint[];
  quiet text[];
  gone bigint[];
  runs text[];
  missed text[];
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'outbox: prune needs a snapshot that is newer than its locks'
      USING ERRCODE = 'invalid_transaction_state', HINT = 'Call it in a READ COMMITTED transaction.';
  ELSIF seconds IS NULL OR least(seconds, max_run_seconds, (SELECT min(s) FROM unnest(tool_seconds) s)) < 3600 THEN
    RAISE EXCEPTION 'outbox: a retention of less than an hour would forget what is still going on'
      USING ERRCODE = 'OB003';
  END IF;

  SELECT coalesce(jsonb_object_agg(tool, greatest(coalesce(own.kept, seconds), coalesce(least_of.kept, floor))), '{}') INTO kept
  FROM unnest(tools, tool_seconds) AS own (tool, kept)
  FULL JOIN (SELECT substr(name, length('retention_floor/') + 1) AS tool, extract(epoch FROM value::interval)::float8 AS kept
             FROM outbox.setting WHERE starts_with(name, 'retention_floor/')) least_of USING (tool);
  SELECT least(usual, min(k.value::float8)) INTO shortest FROM jsonb_each_text(kept) k;

  SELECT CASE WHEN count(*) = looks AND max(i.created_at) < now() - make_interval(secs => shortest) THEN max(i.id) END,
         array_agg(i.id) FILTER (WHERE i.created_at < now() - make_interval(secs => coalesce((kept ->> i.tool_name)::float8, usual)))
  INTO next, aged
  FROM (SELECT id, tool_name, created_at FROM outbox.intent WHERE id > after ORDER BY id LIMIT looks) i;

  aged := ARRAY(SELECT id FROM outbox.intent WHERE id = ANY (aged) ORDER BY id FOR UPDATE SKIP LOCKED);

  -- A run of more than 10,000 intents counts as in use, because each batch would have to look at all of them.
  quiet := ARRAY(
    SELECT run.agent_run_id
    FROM (SELECT DISTINCT agent_run_id FROM outbox.intent WHERE id = ANY (aged)) run
    CROSS JOIN LATERAL (
      SELECT count(*) AS intents, max(coalesce((kept ->> i.tool_name)::float8, usual)) AS longest,
             max(greatest(i.created_at, CASE WHEN newest.settled THEN newest.finished_at ELSE 'infinity' END)) AS used_at
      FROM (SELECT id, tool_name, created_at FROM outbox.intent WHERE agent_run_id = run.agent_run_id LIMIT 10001) i
      LEFT JOIN LATERAL (
        SELECT a.finished_at, a.next_attempt_at IS NULL AS settled FROM outbox.attempt a
        WHERE a.intent_id = i.id ORDER BY a.attempt DESC LIMIT 1) newest ON true
    ) life
    WHERE life.intents <= 10000 AND life.used_at < now() - make_interval(secs => life.longest));

  SELECT array_agg(i.id), array_agg(DISTINCT i.agent_run_id),
         array_agg(DISTINCT i.agent_run_id) FILTER (WHERE i.compensates IS NULL AND newest.status IN ('completed', 'unknown'))
  INTO gone, runs, missed
  FROM outbox.intent i
  CROSS JOIN LATERAL (SELECT now() - make_interval(secs => coalesce((kept ->> i.tool_name)::float8, usual)) AS until) own
  CROSS JOIN LATERAL (
    SELECT a.status, a.next_attempt_at, max(a.finished_at) OVER () AS finished_at  -- of all attempts: the last one may have an earlier time
    FROM outbox.attempt a WHERE a.intent_id = i.id ORDER BY a.attempt DESC LIMIT 1
  ) newest
  WHERE i.id = ANY (aged)
    AND newest.next_attempt_at IS NULL AND newest.finished_at < own.until
    AND (i.agent_run_id = ANY (quiet) OR newest.finished_at < now() - make_interval(secs => max_run_seconds))
    -- a claim lists its settled intents until its last row is settled
    AND i.id NOT IN (SELECT unnest(intent_ids) FROM outbox.claim)
    AND NOT EXISTS (SELECT FROM outbox.incident o WHERE o.intent_id = i.id AND o.resolved_at IS NULL)
    AND NOT EXISTS (SELECT FROM outbox.saga s WHERE s.agent_run_id = i.agent_run_id
                    AND (s.state IN ('begun', 'compensation_failed') OR s.ended_at >= own.until))
    -- the end of an undo is recorded at the step that it undid, so the undo is deleted first
    AND NOT EXISTS (SELECT FROM outbox.intent undo WHERE undo.compensates = i.id);

  DELETE FROM outbox.attempt WHERE intent_id = ANY (gone);
  DELETE FROM outbox.duplicate WHERE intent_id = ANY (gone);
  DELETE FROM outbox.generation WHERE intent_id = ANY (gone);
  DELETE FROM outbox.incident WHERE intent_id = ANY (gone);
  DELETE FROM outbox.intent WHERE id = ANY (gone);
  DELETE FROM outbox.saga s WHERE agent_run_id = ANY (runs)
    AND NOT EXISTS (SELECT FROM outbox.intent i WHERE i.agent_run_id = s.agent_run_id);
  -- An agent that adds a step holds the row until its commit. The step is not visible yet, so the row stays.
  DELETE FROM outbox.run r
  WHERE agent_run_id = ANY (ARRAY(SELECT agent_run_id FROM outbox.run WHERE agent_run_id = ANY (runs) ORDER BY agent_run_id FOR UPDATE SKIP LOCKED))
    AND NOT EXISTS (SELECT FROM outbox.intent i WHERE i.agent_run_id = r.agent_run_id);
  DELETE FROM outbox.forgotten f WHERE agent_run_id = ANY (runs)
    AND NOT EXISTS (SELECT FROM outbox.intent i WHERE i.agent_run_id = f.agent_run_id);
  INSERT INTO outbox.forgotten (agent_run_id)
  SELECT run FROM unnest(missed) run WHERE EXISTS (SELECT FROM outbox.intent i WHERE i.agent_run_id = run)
  ON CONFLICT DO NOTHING;
  pruned := coalesce(cardinality(gone), 0);
  RETURN NEXT;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION outbox.hold, outbox.hold_alone, outbox.retention_floor, outbox.prune FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.hold, outbox.hold_alone, outbox.retention_floor, outbox.prune TO outbox_drainer;
GRANT EXECUTE ON FUNCTION outbox.hold, outbox.retention_floor TO outbox_operator;

-- +goose Down
DROP FUNCTION outbox.prune, outbox.retention_floor, outbox.hold_alone, outbox.hold;
ALTER TABLE outbox.attempt RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE outbox.intent RESET (autovacuum_vacuum_scale_factor);
DROP INDEX outbox.duplicate_intent, outbox.incident_intent;
