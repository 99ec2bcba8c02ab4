-- $1 worker, $2 reason; then one element a row: $3 intent, $4 the newest attempt number when this was
-- decided, $5 outcome, $6 first attempt, $7 maybe applied, $8 the fallback
-- that may have done so, $9 whether to ask before acting. Whoever appends the next number first has won.
-- The entry takes a number of its own, and the tries start again.
WITH asked AS (
  SELECT * FROM unnest($3::bigint[], $4::int[], $5::text[], $6::timestamptz[], $7::boolean[], $8::text[], $9::boolean[])
    AS a (intent_id, attempt, outcome, first_attempt_at, maybe_applied, via, lookup)
), appended AS (
  INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at, reason)
  SELECT intent_id, attempt + 1, $1::text, outcome, 'pending', now(), $2::text
  FROM asked
  ORDER BY intent_id  -- two operators meet in one order, so neither waits for the other in a circle
  ON CONFLICT DO NOTHING RETURNING intent_id, attempt, next_attempt_at
), requeued AS (
  INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt, first_attempt_at, maybe_applied, via, lookup)
  SELECT i.provider, p.next_attempt_at, p.intent_id, i.agent_run_id, p.attempt, a.first_attempt_at, a.maybe_applied, nullif(a.via, ''), a.lookup
  FROM appended p JOIN asked a USING (intent_id) JOIN outbox.intent i ON i.id = p.intent_id
), decided AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = $1::text
  WHERE kind = 'outcome_unknown' AND intent_id IN (SELECT intent_id FROM appended) AND resolved_at IS NULL
)
SELECT intent_id FROM appended;
