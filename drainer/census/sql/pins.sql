-- Returns the oldest holder of each kind that keeps dead rows of this database from being removed: for how many
-- transactions, and for how many seconds if this role may see that.
WITH pin AS (
  SELECT CASE WHEN backend_type = 'walsender' THEN 'standby' ELSE 'transaction' END AS holder,
         CASE WHEN coalesce(age(backend_xid), -1) > coalesce(age(backend_xmin), -1) THEN backend_xid ELSE backend_xmin END AS xid,
         extract(epoch FROM clock_timestamp() - xact_start)::float8 AS held
  FROM pg_stat_activity
  WHERE pid <> pg_backend_pid() AND (datname = current_database() OR backend_type = 'walsender')
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)  -- the snapshot of a vacuum keeps no dead rows
  UNION ALL
  SELECT 'prepared_transaction', transaction, extract(epoch FROM clock_timestamp() - prepared)::float8
  FROM pg_prepared_xacts WHERE database = current_database()
  UNION ALL
  SELECT 'replication_slot', xmin, NULL FROM pg_replication_slots WHERE xmin IS NOT NULL
)
SELECT DISTINCT ON (holder) holder, xid::text, age(xid)::bigint, coalesce(held, 0)
FROM pin ORDER BY holder, age(xid) DESC, held DESC NULLS LAST;
