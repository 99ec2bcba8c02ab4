-- $1 operator, $2 reason; then one element a row: $3 intent, $4 the newest attempt number when this was decided, $5
-- outcome, $6 first attempt, $7 maybe applied, $8 the fallback that may have applied it, $9 whether to look it up before
-- it is sent, $10 whether to send it under a new key, $11 whether it settled before commits were lost; a claim then
-- treats it like a row that was queued at that time. The first transaction to append the next number wins.
-- The entry takes a number of its own, and the tries start again.
WITH asked AS (
  SELECT * FROM unnest($3::bigint[], $4::int[], $5::text[], $6::timestamptz[], $7::boolean[], $8::text[], $9::boolean[], $10::boolean[], $11::boolean[])
    AS a (intent_id, attempt, outcome, first_attempt_at, maybe_applied, via, lookup, new_key, before_loss)
), appended AS (
  INSERT INTO outbox.attempt (intent_id, attempt, operator, outcome, status, next_attempt_at, reason)
  SELECT intent_id, attempt + 1, $1::text, outcome, 'pending', now(), $2::text
  FROM asked
  ORDER BY intent_id  -- two operators insert in the same order, so that they do not deadlock
  ON CONFLICT DO NOTHING RETURNING intent_id, attempt, next_attempt_at
), requeued AS (
  INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt, first_attempt_at, maybe_applied, via, lookup, bytes, tenant, era)
  SELECT i.provider, p.next_attempt_at, p.intent_id, i.agent_run_id, p.attempt, a.first_attempt_at, a.maybe_applied, nullif(a.via, ''), a.lookup,
         i.payload_bytes + coalesce(octet_length(i.headers::text), 0), coalesce(i.tenant, 0::smallint),
         CASE WHEN a.before_loss THEN (SELECT before_era - 1 FROM outbox.in_doubt()) ELSE coalesce((SELECT era FROM outbox.history ORDER BY id DESC LIMIT 1), 0) END
  FROM appended p JOIN asked a USING (intent_id) JOIN outbox.intent i ON i.id = p.intent_id
), renewed AS (
  INSERT INTO outbox.generation AS g (intent_id, generation, doubt)
  SELECT p.intent_id, 2, a.maybe_applied FROM appended p JOIN asked a USING (intent_id) WHERE a.new_key
  ON CONFLICT (intent_id) DO UPDATE SET generation = g.generation + 1, doubt = excluded.doubt
), decided AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = $1::text
  WHERE kind IN ('outcome_unknown', 'refused_intent') AND intent_id IN (SELECT intent_id FROM appended) AND resolved_at IS NULL
)
SELECT intent_id FROM appended;
