-- +goose Up

CREATE INDEX duplicate_intent ON outbox.duplicate (intent_id);
CREATE INDEX incident_intent ON outbox.incident (intent_id);

-- Pruning empties the old end of the indexes, where the next prune begins to look.
ALTER TABLE outbox.intent SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE outbox.attempt SET (autovacuum_vacuum_scale_factor = 0.02);

-- +goose StatementBegin
-- Keeps intents from being pruned until the transaction ends, and returns those
-- that are still there. Whoever adds to what is settled holds it first.
CREATE FUNCTION outbox.hold(intents bigint[]) RETURNS SETOF bigint
LANGUAGE sql SECURITY DEFINER SET search_path = '' AS $$
  SELECT id FROM outbox.intent WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Waits for everybody who holds the intent, and keeps others from it until the
-- transaction ends. False for one that was pruned.
CREATE FUNCTION outbox.hold_alone(intent bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = '' AS $$
  SELECT count(*) = 1 FROM (SELECT FROM outbox.intent WHERE id = $1 FOR UPDATE) held
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Forgets settled intents, with all that was kept of them, among the next
-- looks intents after an id: those that have been settled for that many
-- seconds, or for their own tool's. next is where to go on; null at the end.
-- Never forgotten is what a saga, an open incident or a claim still needs.
--
-- What is old enough is locked first, without waiting. Whether it may go is a
-- statement of its own: its snapshot is newer than the locks, and so sees what
-- an operator brought back in between.
CREATE FUNCTION outbox.prune(after bigint, looks int, seconds float8,
                             tools text[] DEFAULT '{}', tool_seconds float8[] DEFAULT '{}')
RETURNS TABLE (pruned int, next bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = ''
SET enable_seqscan = off SET jit = off AS $$  -- plans for a table that has grown; the price of a scan calls for no compiler
DECLARE
  shortest float8 := least(seconds, (SELECT min(s) FROM unnest(tool_seconds) s));
  aged bigint[];
  gone bigint[];
  runs text[];
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'outbox: prune needs a snapshot that is newer than its locks'
      USING ERRCODE = 'invalid_transaction_state', HINT = 'Call it in a READ COMMITTED transaction.';
  ELSIF shortest IS NULL OR shortest < 3600 THEN
    RAISE EXCEPTION 'outbox: a retention of less than an hour would forget what is still going on'
      USING ERRCODE = 'OB003';
  END IF;

  SELECT CASE WHEN count(*) = looks AND max(i.created_at) < now() - make_interval(secs => shortest) THEN max(i.id) END,
         array_agg(i.id) FILTER (WHERE i.created_at < now() - make_interval(secs => coalesce(own.seconds, prune.seconds)))
  INTO next, aged
  FROM (SELECT id, tool_name, created_at FROM outbox.intent WHERE id > after ORDER BY id LIMIT looks) i
  LEFT JOIN unnest(tools, tool_seconds) AS own (tool, seconds) ON own.tool = i.tool_name;

  aged := ARRAY(SELECT id FROM outbox.intent WHERE id = ANY (aged) ORDER BY id FOR UPDATE SKIP LOCKED);

  SELECT array_agg(i.id), array_agg(DISTINCT i.agent_run_id) INTO gone, runs
  FROM outbox.intent i
  LEFT JOIN unnest(tools, tool_seconds) AS own (tool, seconds) ON own.tool = i.tool_name
  CROSS JOIN LATERAL (SELECT now() - make_interval(secs => coalesce(own.seconds, prune.seconds)) AS until) kept
  CROSS JOIN LATERAL (
    SELECT a.next_attempt_at, a.finished_at FROM outbox.attempt a WHERE a.intent_id = i.id ORDER BY a.attempt DESC LIMIT 1
  ) newest
  WHERE i.id = ANY (aged)
    AND newest.next_attempt_at IS NULL AND newest.finished_at < kept.until
    -- a claim lists what it settled until its last row is
    AND i.id NOT IN (SELECT unnest(intent_ids) FROM outbox.claim)
    AND NOT EXISTS (SELECT FROM outbox.incident o WHERE o.intent_id = i.id AND o.resolved_at IS NULL)
    AND NOT EXISTS (SELECT FROM outbox.saga s WHERE s.agent_run_id = i.agent_run_id
                    AND (s.state IN ('begun', 'compensation_failed') OR s.ended_at >= kept.until))
    -- an undo's end is told to the step that it undid, so it goes first
    AND NOT EXISTS (SELECT FROM outbox.intent undo WHERE undo.compensates = i.id);

  DELETE FROM outbox.attempt WHERE intent_id = ANY (gone);
  DELETE FROM outbox.duplicate WHERE intent_id = ANY (gone);
  DELETE FROM outbox.incident WHERE intent_id = ANY (gone);
  DELETE FROM outbox.intent WHERE id = ANY (gone);
  DELETE FROM outbox.saga s WHERE agent_run_id = ANY (runs)
    AND NOT EXISTS (SELECT FROM outbox.intent i WHERE i.agent_run_id = s.agent_run_id);
  pruned := coalesce(cardinality(gone), 0);
  RETURN NEXT;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION outbox.hold, outbox.hold_alone, outbox.prune FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.hold, outbox.hold_alone, outbox.prune TO outbox_drainer;

-- +goose Down
DROP FUNCTION outbox.prune, outbox.hold_alone, outbox.hold;
ALTER TABLE outbox.attempt RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE outbox.intent RESET (autovacuum_vacuum_scale_factor);
DROP INDEX outbox.duplicate_intent, outbox.incident_intent;
