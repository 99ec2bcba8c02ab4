-- Settles rows: it appends their attempts, requeues those that are retried, and opens incidents and sagas.
--
-- $1 is the worker; all other parameters but $27 are columns with one element for each row, as settle.go names them. A
-- column without any value is null as a whole: unnest fills it up, and the parts that need it are not even started. An
-- outcome or status that is null means 'completed', as most attempts are.
--
-- The claim is the fence. It is locked here: either a reaper came before, and nothing is written, or the reaper waits.
-- Several batches may share the lock, each with rows of its own.
--
-- A row that was settled before fails the whole batch. It is repeated with $27 true, and then nothing is written for that
-- row. That is rare, and costs less than a check for each row, or than ON CONFLICT, which writes a second WAL record a row.
--
-- settle.go renders this text for batches with undos and for all others, since Postgres would start the parts that undos
-- need each time.
WITH fence AS MATERIALIZED (
  SELECT claim_id, provider, era FROM outbox.claim
  WHERE claim_id = ANY ($2::bigint[]) AND worker_id = $1::uuid
  ORDER BY claim_id FOR KEY SHARE
), ended AS MATERIALIZED (
  SELECT e.*,
         coalesce(e.other_outcome, 'completed') AS outcome,
         coalesce(e.other_status, CASE WHEN e.delay IS NULL THEN 'completed' END) AS status,
         now() - make_interval(secs => e.started_ago) AS started_at,
         -- clock_timestamp() is later than now(), so this batch's own claim cannot take the row it puts back
         clock_timestamp() + make_interval(secs => e.delay) AS next_attempt_at
  FROM unnest($2::bigint[], $3::bigint[], $4::int[], $5::float8[], $6::float8[], $7::text[], $8::int[], $9::text[],
              $10::text[], $11::text[], $12::text[], $13::boolean[],
              $14::text[], $15::float8[], $16::boolean[], $17::text[],
              $18::text[], $19::float8[], $20::int[], $21::timestamptz[], $22::boolean[], $23::boolean[], $24::boolean[],
              $25::boolean[], $26::bigint[], $28::text[], $29::boolean[], $30::boolean[])
    AS e (claim_id, intent_id, attempt, started_ago, finished_ago, other_outcome, http_status, error,
          provider_ref, response, response_headers, replayed,
          problem, retry_after_seconds, asked, via,
          other_status, delay, tries, first_attempt_at, may_have_been_sent, maybe_applied, lookup,
          begins_saga, undoes, run, refused, is_foreign)
  -- IS TRUE keeps this a hashed subplan: as a join it would compare each row with each claim
  WHERE (claim_id IN (SELECT claim_id FROM fence)) IS TRUE
    AND (NOT $27::boolean
      OR (SELECT a.attempt FROM outbox.attempt a WHERE (a.intent_id, a.attempt) = (e.intent_id, e.attempt)) IS NULL)
), appended AS (
  INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, finished_at, outcome, status, next_attempt_at,
                              http_status, error, provider_ref, response, response_headers, replayed,
                              problem, retry_after_seconds, lookup, served_by)
  SELECT intent_id, attempt, $1::uuid::text, started_at, now() - make_interval(secs => finished_ago), outcome, status,
         next_attempt_at, http_status, error, provider_ref, response::jsonb, response_headers::jsonb, coalesce(replayed, false),
         problem::jsonb, retry_after_seconds, coalesce(asked, false), CASE WHEN started_at IS NOT NULL THEN via END
  FROM ended
), requeued AS (
  INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via, bytes, tenant, era)
  SELECT (SELECT provider FROM fence WHERE fence.claim_id = ended.claim_id), next_attempt_at, intent_id,
         i.agent_run_id, attempt, tries,
         coalesce(first_attempt_at, CASE WHEN may_have_been_sent THEN started_at END),
         coalesce(maybe_applied, false), coalesce(lookup, false),
         CASE WHEN maybe_applied THEN via END,
         i.payload_bytes + coalesce(octet_length(i.headers::text), 0), coalesce(i.tenant, 0::smallint),
         (SELECT era FROM fence WHERE fence.claim_id = ended.claim_id)  -- lost commits may have settled the row, so it keeps the era of its claim
  FROM ended CROSS JOIN LATERAL (SELECT * FROM outbox.intent WHERE id = intent_id LIMIT 1) i
  WHERE $19::float8[] IS NOT NULL AND next_attempt_at IS NOT NULL
), opened AS (
  -- A human must decide about an unknown outcome, an intent that was refused on this side, and an effect that may be
  -- another outbox's. The same commit opens the incident.
  INSERT INTO outbox.incident AS i (kind, intent_id, agent_run_id, detail)
  SELECT CASE WHEN refused THEN 'refused_intent' WHEN is_foreign THEN 'first_replay' ELSE 'outcome_unknown' END, intent_id, (SELECT agent_run_id FROM outbox.intent WHERE id = intent_id), error
  FROM ended
  WHERE ('unknown' = ANY ($18::text[]) OR $29::boolean[] IS NOT NULL OR $30::boolean[] IS NOT NULL)
    AND (refused OR is_foreign OR (status = 'unknown' AND next_attempt_at IS NULL AND undoes IS NULL))
  ON CONFLICT (kind, intent_id) DO UPDATE
  SET detail = excluded.detail, opened_at = now()
), waiting AS MATERIALIZED (
  -- Sagas that wait for one of these rows. They are locked in the order of their ids, and before any saga is begun, so
  -- that two batches cannot deadlock. A pass locks a saga for one statement only.
  SELECT agent_run_id{{if .Undos}}, state, passes, plan[place] AS undoing, plan[place + 1] AS step, ready->((place + 1)::text) AS ready{{end}}
  FROM outbox.saga
  WHERE $28::text[] IS NOT NULL AND agent_run_id = ANY (ARRAY(SELECT run FROM ended WHERE next_attempt_at IS NULL AND run IS NOT NULL))
  ORDER BY agent_run_id FOR UPDATE
), begun AS (
  INSERT INTO outbox.saga (agent_run_id, cause)
  SELECT DISTINCT ON (run) run, intent_id FROM ended
  WHERE $25::boolean[] IS NOT NULL AND (SELECT count(*) FROM waiting) >= 0 AND begins_saga
  ORDER BY run, intent_id
  ON CONFLICT DO NOTHING
){{if .Undos}}, undo AS MATERIALIZED (  -- undos that have ended
  SELECT undoes, status, error, run FROM ended
  WHERE undoes IS NOT NULL AND next_attempt_at IS NULL
), undone AS (
  -- the newest attempt of an intent has its status, so the result of an undo is recorded as an attempt of the undone step
  INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, error)
  SELECT undoes, (SELECT max(attempt) + 1 FROM outbox.attempt a WHERE a.intent_id = undoes), 'saga',
         CASE WHEN status = 'completed' THEN 'undone' ELSE 'not_undone' END,
         CASE WHEN status = 'completed' THEN 'compensated' ELSE 'compensation_failed' END, error
  FROM undo
  RETURNING intent_id, status
), onward AS MATERIALIZED (
  -- Sagas for which a pass has decided, a short while ago, what follows this undo. Any other event of the run since then
  -- has removed the plan. A batch that failed may have failed here, so a repeated batch leaves this to a pass.
  SELECT agent_run_id, step, ready FROM waiting
  WHERE NOT $27::boolean AND state = 'begun' AND passes = 0 AND (ready->'until'::text)::float8 > (SELECT extract(epoch FROM now())::float8)
    AND (undoing IN (SELECT intent_id FROM undone WHERE status = 'compensated')) IS TRUE
    AND (agent_run_id IN (SELECT run FROM undo WHERE status <> 'completed')) IS NOT TRUE
), next AS (
  INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, headers, compensates, tenant, namespace)
  SELECT i.agent_run_id, onward.ready->>'step'::text, onward.ready->>'tool'::text, i.business_scope, coalesce(onward.ready->'payload'::text, i.payload), i.headers, i.id, i.tenant,
         coalesce((SELECT t.namespace FROM outbox.tenant t WHERE t.tenant_id = i.tenant),
                  (SELECT p.namespace FROM outbox.provider p WHERE p.name = split_part(onward.ready->>'tool'::text, '/'::text, 1)),
                  (SELECT nullif(s.value, '') FROM outbox.setting s WHERE s.name = 'namespace'))
  FROM onward CROSS JOIN LATERAL (SELECT * FROM outbox.intent WHERE id = onward.step LIMIT 1) i
  WHERE onward.ready->>'tool'::text IS NOT NULL
){{end}}, moved AS (
  -- A pass that is under way sees that the saga has changed. The saga is not taken a second time meanwhile.
  -- The array makes this one look-up for each saga: a join that was planned for an empty table would compare each saga
  -- in the table with each of these.
  UPDATE outbox.saga s
  SET {{if .Undos}}state = CASE WHEN s.state = 'begun' AND s.agent_run_id IN (SELECT run FROM undo WHERE status <> 'completed')
                   THEN 'compensation_failed'
                   WHEN s.agent_run_id IN (SELECT agent_run_id FROM onward WHERE ready->>'tool'::text IS NULL) THEN 'compensated'
                   ELSE s.state END,
      ended_at = CASE WHEN s.state = 'begun' AND s.agent_run_id IN (SELECT run FROM undo WHERE status <> 'completed')
                        OR s.agent_run_id IN (SELECT agent_run_id FROM onward WHERE ready->>'tool'::text IS NULL)
                      THEN now() ELSE s.ended_at END,
      plan = CASE WHEN s.agent_run_id IN (SELECT run FROM undo) THEN s.plan END,  -- the plan does not contain how an undo ended
      place = CASE WHEN s.agent_run_id IN (SELECT agent_run_id FROM onward) THEN s.place + 1 ELSE s.place END,
      moves_at = CASE WHEN s.agent_run_id IN (SELECT agent_run_id FROM onward) THEN 'infinity'
                      WHEN s.passes = 0 THEN now() ELSE s.moves_at END
  {{else}}plan = NULL, moves_at = CASE WHEN s.passes = 0 THEN now() ELSE s.moves_at END
  {{end}}WHERE s.agent_run_id = ANY (ARRAY(SELECT agent_run_id FROM waiting))
){{if .Undos}}, failed AS (
  INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
  SELECT 'compensation_failed', undoes, run, coalesce(error, status)
  FROM undo WHERE status <> 'completed'
  ON CONFLICT (kind, intent_id) DO UPDATE
  SET detail = excluded.detail, opened_at = now()
){{end}}
SELECT 'refused' AS what, (n - 1)::int AS n
FROM unnest($3::bigint[], $4::int[]) WITH ORDINALITY AS e (intent_id, attempt, n)
-- IS NOT TRUE keeps this a hashed subplan; a join on the CTE would be quadratic
WHERE ($27 OR (SELECT count(*) FROM fence) < (SELECT pg_catalog.count(DISTINCT claim) FROM pg_catalog.unnest($2) claim))
  AND ((intent_id, attempt) IN (SELECT intent_id, attempt FROM ended)) IS NOT TRUE
{{if .Undos}}UNION ALL SELECT 'undos', count(*)::int FROM onward WHERE ready->>'tool'::text IS NOT NULL
UNION ALL SELECT 'compensated', count(*)::int FROM onward WHERE ready->>'tool'::text IS NULL
{{end}}ORDER BY what, n;
