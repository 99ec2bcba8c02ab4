-- $1 the workers of this process, $2 the history that it looks at, $3 the one that it knew, $4 how far it saw that; then one
-- element a commit that it was told of since: $5 its claim, or 0, and $6 an intent of which it made $7 an attempt; $8 whether it remembers
-- all of them, which a process that only read its witness does not; $9 the worker of each commit: where another has made the attempt
-- of that number, it was given twice.
-- Commits are lost from the last one backwards, so one row of each shows them all. Records whether all are there; where
-- one is not, the history is accepted no longer: but where an operator did who expected it, and all is in doubt.
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
