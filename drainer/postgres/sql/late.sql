-- What a worker that has lost its row knows of an effect: $1 worker, $2 intent,
-- $3 seconds since its attempt started, $4 HTTP status, $5 the provider's
-- reference, $6 its response, $7 the fallback that was called, $8 whether the row
-- was taken out of the queue for it. Else nothing is written unless the effect is
-- on record as none, or as unknown.
WITH late AS (
  INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, http_status, provider_ref, response, error, served_by)
  SELECT intent_id, attempt + 1, $1::uuid::text, now() - make_interval(secs => $3::float8), 'completed', 'completed',
         $4::int, $5::text, $6::jsonb, 'late', $7::text
  FROM (SELECT intent_id, attempt, status, next_attempt_at FROM outbox.attempt
        WHERE intent_id = $2::bigint ORDER BY attempt DESC LIMIT 1) newest
  WHERE $8::boolean OR (status IN ('failed', 'cancelled', 'unknown') AND next_attempt_at IS NULL)
  RETURNING intent_id
), found_out AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = 'evidence'
  WHERE kind = 'outcome_unknown' AND resolved_at IS NULL AND intent_id = (SELECT intent_id FROM late)
)
SELECT EXISTS (SELECT FROM late);
