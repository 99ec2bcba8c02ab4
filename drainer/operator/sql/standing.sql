-- $1 intents. Returns the facts by which an action is decided, from one snapshot. The clock of a key starts at the
-- first attempt that may have sent it. If an operator has accepted a duplicate or asked for a new key, it starts at
-- the first attempt after the last such decision.
WITH lost AS MATERIALIZED (SELECT * FROM outbox.in_doubt())
SELECT s.intent_id, s.agent_run_id, s.step_id, s.tool_name, s.business_scope, s.status,
       coalesce(q.attempt, history.newest, 0) AS attempt,
       q.intent_id IS NOT NULL AS queued,
       s.finished_at IS NOT NULL AS settled,
       coalesce(q.lookup, false) AS lookup,
       coalesce((SELECT lookup AND outcome <> 'lost' FROM outbox.attempt a
         WHERE a.intent_id = s.intent_id AND started_at IS NOT NULL ORDER BY attempt DESC LIMIT 1), false) AS asked,
       coalesce(q.next_attempt_at <= now(), false) AS due,
       coalesce(q.maybe_applied OR q.era < lost.before_era, s.status = 'unknown' OR settled.before_loss) AS maybe_applied,
       settled.before_loss,
       coalesce(s.last_outcome, '') AS last_outcome,
       coalesce(s.provider_ref, '') AS provider_ref,
       coalesce((SELECT state FROM outbox.saga g WHERE g.agent_run_id = s.agent_run_id), '') AS saga,
       coalesce(doubt.via, '') AS via,
       (SELECT not_before FROM outbox.intent i WHERE i.id = s.intent_id AND not_before > now()) AS not_before,
       sent.first AS first_attempt_at,
       coalesce(extract(epoch FROM now() - sent.first), 0)::float8 AS seconds_since_first,
       history.changed_at
FROM lost CROSS JOIN outbox.standing s
LEFT JOIN outbox.queue q USING (intent_id)
CROSS JOIN LATERAL (
  SELECT max(attempt) AS newest, max(finished_at) AS changed_at, max(attempt) FILTER (
    WHERE outcome IN ('retried_may_duplicate', 'retried_new_key', 'retried_new_key_may_duplicate')) AS accepted
  FROM outbox.attempt a WHERE a.intent_id = s.intent_id) history
CROSS JOIN LATERAL (
  -- a lost attempt may have sent a retry of it
  SELECT s.finished_at IS NOT NULL AND s.status IN ('failed', 'cancelled', 'unknown') AND history.changed_at <= lost.settled_by AS before_loss
) settled
CROSS JOIN LATERAL (
  SELECT coalesce(min(started_at) FILTER (WHERE attempt > accepted), least(min(started_at), (
    -- attempts that sent it may be lost
    SELECT coalesce(step.created_at, i.created_at) FROM outbox.intent i
    LEFT JOIN outbox.intent step ON step.id = i.compensates AND (SELECT max(doubted_through) FROM outbox.history) BETWEEN step.id AND i.id - 1
    WHERE i.id = s.intent_id AND coalesce(step.created_at, i.created_at)
      <= (SELECT max(coalesce(accepted_at, seen_at)) FROM outbox.history WHERE doubted_before = era)))) AS first
  FROM outbox.attempt a
  WHERE a.intent_id = s.intent_id AND started_at IS NOT NULL AND NOT lookup AND outcome NOT IN ('not_sent', 'released', 'credentials_refused')) sent
LEFT JOIN LATERAL (
  SELECT served_by AS via FROM outbox.attempt a
  WHERE a.intent_id = s.intent_id AND NOT lookup AND outcome IN ('ambiguous', 'lost', 'in_flight')
  ORDER BY attempt DESC LIMIT 1) doubt ON true
WHERE s.intent_id = ANY ($1::bigint[])
ORDER BY s.intent_id;
