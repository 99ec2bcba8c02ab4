-- $1 runs, $2 the versions of their sagas, $3 tools whose effects need no undo, $4 how many steps a plan has at most.
-- Returns the steps to undo next, the newest completed first; the move that follows writes them down. While a step
-- of the run is open there is no plan: the saga waits, and the longer it has waited, the later it is due again. If
-- only a human can end each open step, the saga is not due again before the human's decision marks it. In the first
-- minute it is due even so, since a transaction that has not seen the saga may decide without a mark. If another
-- transaction holds a saga's row, the saga is skipped: it is about to change.
WITH found AS MATERIALIZED (
  SELECT asked.run, asked.version, found.*
  FROM unnest($1::text[], $2::text[]) AS asked (run, version)
  CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE coalesce(newest.status, 'pending') IN ('pending', 'unknown')) AS open,
           count(*) FILTER (WHERE newest.status = 'unknown' AND newest.next_attempt_at IS NULL) AS human,
           (pg_catalog.array_agg(i.id ORDER BY coalesce(done.finished_at, newest.finished_at) DESC, i.id DESC) FILTER (WHERE newest.status = 'completed' AND
             coalesce(coalesce(CASE WHEN newest.is_effect THEN newest.served_by ELSE done.served_by END, doubt.served_by) || '/' || substr(i.tool_name, strpos(i.tool_name, '/'::text) + 1), i.tool_name)
               <> ALL ($3::text[])))[1:$4::int] AS steps
    FROM outbox.intent i
    LEFT JOIN LATERAL (
      SELECT status, next_attempt_at, finished_at, served_by, outcome, status = 'completed' AND outcome IN ('completed', 'resolved') AS is_effect
      FROM outbox.attempt a WHERE a.intent_id = i.id ORDER BY a.attempt DESC LIMIT 1
    ) newest ON true
    LEFT JOIN LATERAL (
      SELECT finished_at, served_by, outcome FROM outbox.attempt a
      WHERE newest.status = 'completed' AND NOT newest.is_effect AND a.intent_id = i.id AND a.status = 'completed' AND a.outcome IN ('completed', 'resolved')
      ORDER BY a.attempt DESC LIMIT 1
    ) done ON true
    LEFT JOIN LATERAL (
      SELECT served_by FROM outbox.attempt a
      WHERE CASE WHEN newest.is_effect THEN newest.outcome ELSE done.outcome END = 'resolved' AND a.intent_id = i.id AND NOT a.lookup AND a.outcome IN ('ambiguous', 'lost', 'in_flight')
      ORDER BY a.attempt DESC LIMIT 1
    ) doubt ON true
    WHERE i.agent_run_id = asked.run AND i.compensates IS NULL
  ) found
), held AS MATERIALIZED (
  SELECT found.*, s.tuple FROM found CROSS JOIN LATERAL (
    SELECT ctid AS tuple FROM outbox.saga
    WHERE agent_run_id = found.run AND state = 'begun' AND xmin::text = found.version LIMIT 1
    FOR UPDATE SKIP LOCKED
  ) s
  WHERE found.open > 0
), waiting AS (
  UPDATE outbox.saga s
  SET ready = NULL, passes = 0,
      moves_at = CASE WHEN found.open = found.human AND s.begun_at < now() - interval '1 minute' THEN 'infinity'
                      ELSE now() + least(interval '1 minute', greatest(interval '250 ms', (now() - s.begun_at) / 4::float8)) END
  FROM held found WHERE s.ctid = found.tuple
  RETURNING s.agent_run_id
)
SELECT run, coalesce(steps, '{}')::text FROM found WHERE open = 0
UNION ALL SELECT agent_run_id, NULL FROM waiting;
