-- $1 the workers of this process, $2 the history that it looks at, $3 the history that it knew before, $4 the last
-- position in the log that it saw of that one; then one element for each commit of this process since: $5 its claim
-- or 0, $6 one of its intents, $7 the number of the attempt; $8 whether the process remembers all such commits (a
-- process that only read its witness does not); $9 the worker of each commit. If another worker made the attempt of
-- that number, the number was used twice, so the commit is lost.
-- Commits are lost from the last one backwards, so one row of each commit shows whether it is there. Records whether
-- all are there. If one is missing, the history is no longer accepted, unless it is accepted with all that was queued
-- before it in doubt: then the operator expected the loss.
WITH gone AS MATERIALIZED (
  SELECT NOT EXISTS (SELECT FROM outbox.history WHERE id = $3::int AND (lsn >= $4::pg_lsn) IS NOT FALSE)
    OR EXISTS (
      SELECT FROM unnest($5::bigint[], $6::bigint[], $7::int[], $9::text[]) AS told (claim_id, intent_id, attempt, worker)
      WHERE EXISTS (SELECT FROM outbox.attempt a WHERE a.intent_id = told.intent_id AND a.attempt = told.attempt AND a.worker IS DISTINCT FROM told.worker)
        OR NOT EXISTS (SELECT FROM outbox.claim c WHERE c.claim_id = told.claim_id AND told.intent_id = ANY (c.intent_ids))
        AND NOT EXISTS (SELECT FROM outbox.attempt a WHERE a.intent_id = told.intent_id AND a.attempt >= told.attempt)
        AND NOT EXISTS (SELECT FROM outbox.queue q WHERE q.intent_id = told.intent_id AND q.attempt >= told.attempt)) AS lost
), answered AS (
  UPDATE outbox.history h
  SET awaited = ARRAY(SELECT w FROM pg_catalog.unnest(h.awaited) AS a (w) WHERE w <> ALL ($1::uuid[])),
      found = found + CASE WHEN gone.lost OR NOT $8::boolean THEN 0 ELSE 1 END,
      lost = h.lost OR gone.lost,
      accepted_by = CASE WHEN gone.lost AND h.doubted_before < h.era THEN NULL ELSE h.accepted_by END,
      accepted_at = CASE WHEN gone.lost AND h.doubted_before < h.era THEN NULL ELSE h.accepted_at END,
      era = CASE WHEN gone.lost AND h.doubted_before < h.era THEN h.era + 1 ELSE h.era END,
      doubted_before = CASE WHEN gone.lost AND h.doubted_before < h.era THEN h.era + 1 ELSE h.doubted_before END,
      doubted_through = CASE WHEN gone.lost AND h.doubted_before < h.era THEN coalesce((SELECT max(i.id) FROM outbox.intent i), 0) ELSE h.doubted_through END
  FROM gone WHERE h.id = $2::int
  RETURNING h.accepted_by
), paged AS (
  INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
  SELECT 'history_changed', 0, '', 'a daemon misses commits' FROM answered, gone WHERE gone.lost AND accepted_by IS NULL
  ON CONFLICT (kind, intent_id) DO UPDATE SET detail = excluded.detail, opened_at = now()
)
SELECT lost FROM gone;
