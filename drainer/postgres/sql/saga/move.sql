-- One element a saga: $1 run, $2 its version when it was decided, $3 its state now, $4 the
-- place in its plan; null to plan from the start, $5 after how many seconds it can move again, unless
-- it is marked before; null for never, $6 step, $7 the tool that undoes the step,
-- $8 payload; null for the step's own, which may be nested as deep as Postgres reads just once, $9 what is told to the step, $10 why it cannot be undone, $11 the incident's
-- kind, $12 what to do at the places that follow, once the undo completes,
-- $13 the undo's step_id, $14 the plan, where none is written down. A saga that has changed meanwhile, or is about to, is not moved: its row is held
-- for this statement alone, and no other statement waits for it. The saga, the step, its undo and the
-- incident change together.
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
  -- A second undo meets the unique index.
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
