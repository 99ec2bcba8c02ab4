-- What a worker that has lost its row knows of an effect: $1 worker, $2 intent,
-- $3 seconds since its attempt started, $4 HTTP status, $5 the provider's
-- reference, $6 its response, $7 the fallback that was called, $8 whether the tool
-- acts. Nothing is written unless the effect is on record as none, or as unknown.
-- Who appends an attempt at the same moment fails it: it is run again then, and
-- sees what that one has written.
WITH late AS (
  INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, http_status, provider_ref, response, error, served_by)
  SELECT intent_id, attempt + 1, $1::uuid::text, now() - make_interval(secs => $3::float8), 'completed', 'completed',
         $4::int, $5::text, $6::jsonb, 'late', $7::text
  FROM (SELECT intent_id, attempt, status, next_attempt_at FROM outbox.attempt
        WHERE intent_id = $2::bigint ORDER BY attempt DESC LIMIT 1) newest
  WHERE status IN ('failed', 'cancelled', 'unknown') AND next_attempt_at IS NULL
  RETURNING intent_id
), found_out AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = 'evidence'
  WHERE kind = 'outcome_unknown' AND resolved_at IS NULL AND intent_id = (SELECT intent_id FROM late)
), ending AS MATERIALIZED (
  -- a pass that has read its steps by now has not seen the effect: this waits for it, and sees what it did
  SELECT agent_run_id, state FROM outbox.saga
  WHERE agent_run_id = (SELECT agent_run_id FROM outbox.intent WHERE id = (SELECT intent_id FROM late))
  FOR UPDATE
), astray AS (  -- an effect that came after its run had gone back
  SELECT agent_run_id FROM ending
  WHERE $8::boolean AND state IN ('compensated', 'compensation_failed', 'resolved')
), not_net_zero AS (
  UPDATE outbox.saga SET state = 'compensation_failed'
  WHERE agent_run_id IN (SELECT agent_run_id FROM astray) AND state <> 'compensation_failed'
)
INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
SELECT 'compensation_failed', $2, agent_run_id, 'late_effect' FROM astray
ON CONFLICT (kind, intent_id) DO UPDATE SET detail = excluded.detail, opened_at = now();
