-- $1 the history that this process knows, 0 for none; $2 the last position in the log that it saw of that history; $3
-- whether each worker has had the time to answer that its commits are there; $4 who accepts another history at
-- once, or ''.
-- Compares the server's identity and position with the newest row, and begins another row if commits may have been
-- lost. If two processes look at the same time, the first begins the row.
-- Returns the position that the server will remember: the one that this statement wrote, or the previous one if
-- another heartbeat was writing.
WITH here AS MATERIALIZED (
  SELECT system_identifier, timeline, lsn, (SELECT oid FROM pg_database WHERE datname = current_database()) AS database_oid
  FROM outbox.whereabouts()
), was AS MATERIALIZED (
  SELECT h.*, (SELECT b.doubted_before FROM outbox.history b WHERE b.id < h.id ORDER BY b.id DESC LIMIT 1) AS of_earlier,
    (SELECT b.doubted_through FROM outbox.history b WHERE b.id < h.id ORDER BY b.id DESC LIMIT 1) AS through_earlier,
    CASE WHEN h.id < $1::int THEN 'the database forgot a change of its history'
         WHEN h.table_oid <> h.tableoid OR h.database_oid <> here.database_oid THEN 'the database is a copy'
         WHEN h.system_identifier <> here.system_identifier THEN 'another system identifier'
         WHEN h.timeline <> here.timeline THEN pg_catalog.format('timeline %s follows timeline %s'::text, here.timeline, h.timeline)
         WHEN here.lsn < h.lsn THEN 'the log ends before the last heartbeat'
         WHEN h.id = $1::int AND h.lsn < $2::pg_lsn THEN 'the database forgot a heartbeat'
    END AS differs
  FROM here, (SELECT *, tableoid FROM outbox.history ORDER BY id DESC LIMIT 1) h
), resumes AS MATERIALIZED (
  SELECT id, coalesce(of_earlier, 0) AS doubted_before, coalesce(through_earlier, 0) AS doubted_through FROM was
  WHERE differs IS NULL AND accepted_by IS NULL AND NOT lost AND found > 0 AND pg_catalog.cardinality(awaited) = 0
    AND $3::boolean
), noted AS (
  UPDATE outbox.history h
  SET lsn = greatest(h.lsn, here.lsn), seen_at = clock_timestamp(),
      system_identifier = coalesce(h.system_identifier, here.system_identifier), timeline = coalesce(h.timeline, here.timeline),
      accepted_by = CASE WHEN r.id IS NULL OR h.lost THEN h.accepted_by ELSE 'drainer' END,
      accepted_at = CASE WHEN r.id IS NULL OR h.lost THEN h.accepted_at ELSE clock_timestamp() END,
      doubted_before = CASE WHEN r.id IS NULL OR h.lost THEN h.doubted_before ELSE r.doubted_before END,
      doubted_through = CASE WHEN r.id IS NULL OR h.lost THEN h.doubted_through ELSE r.doubted_through END
  FROM here LEFT JOIN resumes r ON true
  -- SKIP LOCKED: a heartbeat does not wait for another
  WHERE h.id = (SELECT o.id FROM outbox.history o WHERE o.id = (SELECT id FROM was WHERE differs IS NULL) FOR UPDATE SKIP LOCKED)
  RETURNING h.id, h.accepted_by, h.lsn
), begun AS (
  INSERT INTO outbox.history (id, system_identifier, timeline, lsn, table_oid, database_oid, change, awaited, era, doubted_before, doubted_through, accepted_by, accepted_at)
  SELECT greatest(coalesce(was.id, 0), $1::int) + 1, here.system_identifier, here.timeline, here.lsn, 'outbox.history'::regclass, here.database_oid,
         cause, CASE WHEN cause IS NULL THEN '{}' ELSE ARRAY(SELECT worker_id FROM outbox.worker) END,
         coalesce(was.era, 0) + 1, CASE WHEN accepts IS NULL THEN coalesce(was.era, 0) + 1 ELSE coalesce(was.doubted_before, 0) END,
         CASE WHEN accepts IS NULL THEN coalesce((SELECT max(i.id) FROM outbox.intent i), 0) ELSE coalesce(was.doubted_through, 0) END,
         accepts, CASE WHEN accepts IS NOT NULL THEN clock_timestamp() END
  FROM here LEFT JOIN was ON true
  CROSS JOIN LATERAL (SELECT CASE WHEN was.id IS NOT NULL THEN was.differs WHEN $1::int > 0 THEN 'the database forgot its history' END AS cause) c
  CROSS JOIN LATERAL (SELECT CASE WHEN cause IS NULL THEN 'drainer' ELSE nullif($4::text, '') END AS accepts) a
  WHERE was.id IS NULL OR cause IS NOT NULL
  ON CONFLICT DO NOTHING
  RETURNING id, lsn, change, accepted_by
), paged AS (
  INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
  SELECT 'history_changed', 0, '', change FROM begun WHERE accepted_by IS NULL
  ON CONFLICT (kind, intent_id) DO UPDATE SET detail = excluded.detail, opened_at = now()
), over AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = 'drainer'
  WHERE kind = 'history_changed' AND resolved_at IS NULL AND EXISTS (SELECT FROM noted JOIN resumes USING (id) WHERE accepted_by IS NOT NULL)
)
-- returns no row if another worker has begun a history since this statement began
SELECT id, coalesce(lsn, '0/0')::text, coalesce(here_lsn, '0/0')::text, coalesce(change, '') FROM (
  SELECT begun.id, begun.lsn, here.lsn AS here_lsn, begun.change FROM begun, here
  UNION ALL
  SELECT was.id, coalesce((SELECT noted.lsn FROM noted), was.lsn), here.lsn, '' FROM was, here WHERE was.differs IS NULL) r;
