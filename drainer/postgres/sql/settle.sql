-- $1 worker, then one element a row. A column that no row has anything in is
-- null as a whole: unnest fills it up, and what needs it is not even begun. No
-- outcome and no status stand for 'completed', which most attempts are. The fence
-- is the claim itself: it is locked here, so that a reaper either comes before, and
-- nothing is written, or waits. Several turns may share the lock, each with rows of
-- its own. A row that was settled before fails the whole turn, which comes again
-- with $27: then nothing of it is written. That is rare, and cheaper than to ask
-- for each row, or than ON CONFLICT, which logs a second record a row.
WITH fence AS MATERIALIZED (
  SELECT claim_id, provider FROM outbox.claim
  WHERE claim_id = ANY ($2::bigint[]) AND worker_id = $1::uuid
  ORDER BY claim_id FOR KEY SHARE
), ended AS MATERIALIZED (
  SELECT e.*,
         coalesce(e.other_outcome, 'completed') AS outcome,
         coalesce(e.other_status, CASE WHEN e.delay IS NULL THEN 'completed' END) AS status,
         now() - make_interval(secs => e.started_ago) AS started_at,
         -- clock_timestamp() is later than now(), so this turn's own claim cannot take the row it puts back
         clock_timestamp() + make_interval(secs => e.delay) AS next_attempt_at
  FROM unnest($2::bigint[], $3::bigint[], $4::int[], $5::float8[], $6::float8[], $7::text[], $8::int[], $9::text[],
              $10::text[], $11::text[], $12::text[], $13::boolean[],
              $14::text[], $15::float8[], $16::boolean[], $17::text[],
              $18::text[], $19::float8[], $20::int[], $21::timestamptz[], $22::boolean[], $23::boolean[], $24::boolean[],
              $25::boolean[], $26::bigint[])
    AS e (claim_id, intent_id, attempt, started_ago, finished_ago, other_outcome, http_status, error,
          provider_ref, response, response_headers, replayed,
          problem, retry_after_seconds, asked, via,
          other_status, delay, tries, first_attempt_at, may_have_been_sent, maybe_applied, lookup,
          begins_saga, undoes)
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
  INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via)
  SELECT (SELECT provider FROM fence WHERE fence.claim_id = ended.claim_id), next_attempt_at, intent_id,
         (SELECT agent_run_id FROM outbox.intent WHERE id = intent_id), attempt, tries,
         coalesce(first_attempt_at, CASE WHEN may_have_been_sent THEN started_at END),
         coalesce(maybe_applied, false), coalesce(lookup, false),
         CASE WHEN maybe_applied THEN via END
  FROM ended
  WHERE $19::float8[] IS NOT NULL AND next_attempt_at IS NOT NULL
), opened AS (
  -- what nobody can tell is a human's to decide, from the same commit on
  INSERT INTO outbox.incident AS i (kind, intent_id, agent_run_id, detail)
  SELECT 'outcome_unknown', intent_id, (SELECT agent_run_id FROM outbox.intent WHERE id = intent_id), error
  FROM ended
  WHERE 'unknown' = ANY ($18::text[]) AND status = 'unknown' AND next_attempt_at IS NULL AND undoes IS NULL
  ON CONFLICT (kind, intent_id) DO UPDATE
  SET detail = excluded.detail, opened_at = now()
), begun AS (
  INSERT INTO outbox.saga (agent_run_id, cause)
  SELECT DISTINCT ON (agent_run_id) agent_run_id, id FROM outbox.intent
  WHERE $25::boolean[] IS NOT NULL
    AND id = ANY (ARRAY(SELECT intent_id FROM ended WHERE begins_saga))
  ORDER BY agent_run_id, id
  ON CONFLICT DO NOTHING
), undo AS MATERIALIZED (  -- undos that have ended
  SELECT undoes, status, error FROM ended
  WHERE $26::bigint[] IS NOT NULL AND undoes IS NOT NULL AND next_attempt_at IS NULL
), undone AS (
  -- the newest attempt of an intent tells where it stands, so what its undo came to is one of its own
  INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, error)
  SELECT undoes, (SELECT max(attempt) + 1 FROM outbox.attempt a WHERE a.intent_id = undoes), 'saga',
         CASE WHEN status = 'completed' THEN 'undone' ELSE 'not_undone' END,
         CASE WHEN status = 'completed' THEN 'compensated' ELSE 'compensation_failed' END, error
  FROM undo
  ON CONFLICT DO NOTHING
), stuck AS (
  UPDATE outbox.saga SET state = 'compensation_failed', ended_at = now()
  WHERE state = 'begun' AND agent_run_id = ANY (ARRAY(
    SELECT agent_run_id FROM outbox.intent WHERE id = ANY (ARRAY(SELECT undoes FROM undo WHERE status <> 'completed'))))
), failed AS (
  INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
  SELECT 'compensation_failed', undoes, (SELECT agent_run_id FROM outbox.intent WHERE id = undoes), coalesce(error, status)
  FROM undo WHERE status <> 'completed'
  ON CONFLICT (kind, intent_id) DO UPDATE
  SET detail = excluded.detail, opened_at = now()
)
SELECT (n - 1)::int AS refused
FROM unnest($3::bigint[], $4::int[]) WITH ORDINALITY AS e (intent_id, attempt, n)
-- IS NOT TRUE keeps this a hashed subplan; a join on the CTE would be quadratic
WHERE ($27 OR (SELECT count(*) FROM fence) < (SELECT count(DISTINCT claim) FROM unnest($2) claim))
  AND ((intent_id, attempt) IN (SELECT intent_id, attempt FROM ended)) IS NOT TRUE
ORDER BY n;
