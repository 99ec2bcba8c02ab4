-- One element a saga: $1 run, $2 the version for which the move was decided, $3 the new state, $4 the place in its
-- plan (null: make a new plan), $5 after how many seconds it is due again unless it is marked before (null: never),
-- $6 step, $7 the tool that undoes the step, $8 the undo's payload (null: the step's own, which is copied here
-- because it may be nested so deep that Postgres could not read its text again), $9 the step's new status, $10 why
-- the step cannot be undone, $11 the incident's kind, $12 the decisions in advance on the places that follow the
-- undo, $13 the undo's step_id, $14 the plan, if none is written down yet. The saga, the step, its undo and the
-- incident change together. A saga is not moved if it has changed meanwhile, or if another transaction holds its
-- row. This statement holds the row only until its own commit, and never waits for another transaction's hold.
WITH asked AS MATERIALIZED (
  SELECT a.*, s.cause, s.tuple
  FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::float8[], $6::bigint[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[],
              $12::text[], $13::text[], $14::text[])
    AS a (run, version, state, place, delay, step, tool, payload, told, why, incident, ready, undo_step, plan)
  CROSS JOIN LATERAL (
    SELECT cause, ctid AS tuple FROM outbox.saga
    WHERE agent_run_id = a.run AND xmin::text = a.version AND state = 'begun' LIMIT 1
    FOR UPDATE SKIP LOCKED
  ) s
), moved AS (
  UPDATE outbox.saga s
  SET state = a.state, ended_at = CASE WHEN a.state <> 'begun' THEN now() END, passes = 0,
      plan = CASE WHEN a.place IS NOT NULL THEN coalesce(a.plan::bigint[], s.plan) END, place = coalesce(a.place, 1), ready = a.ready::jsonb,
      moves_at = coalesce(now() + make_interval(secs => a.delay), 'infinity')
  FROM asked a WHERE s.ctid = a.tuple
), told AS (
  INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, error)
  SELECT step, (SELECT max(attempt) + 1 FROM outbox.attempt a WHERE a.intent_id = step), 'saga',
         CASE told WHEN 'compensated' THEN 'undone' ELSE 'not_undone' END, told, why
  FROM asked WHERE told IS NOT NULL
), undo AS (
  -- A second undo of a step violates the unique index.
  INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, headers, compensates, tenant, namespace)
  SELECT i.agent_run_id, a.undo_step, a.tool, i.business_scope, coalesce(a.payload::jsonb, i.payload), i.headers, i.id, i.tenant,
         coalesce((SELECT t.namespace FROM outbox.tenant t WHERE t.tenant_id = i.tenant),
                  (SELECT p.namespace FROM outbox.provider p WHERE p.name = split_part(a.tool, '/'::text, 1)),
                  (SELECT nullif(s.value, '') FROM outbox.setting s WHERE s.name = 'namespace'))
  FROM asked a CROSS JOIN LATERAL (SELECT * FROM outbox.intent WHERE id = a.step LIMIT 1) i WHERE a.tool IS NOT NULL
), opened AS (
  INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
  SELECT incident, coalesce(step, cause, (SELECT min(id) FROM outbox.intent i WHERE i.agent_run_id = run), 0), run, why FROM asked WHERE incident IS NOT NULL
  ON CONFLICT (kind, intent_id) DO UPDATE SET detail = excluded.detail, opened_at = now()
)
SELECT run FROM asked;
