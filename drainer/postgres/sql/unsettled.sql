-- $1 claims, which the statement before has locked. The snapshot must be newer than the locks, or it would miss rows that
-- were settled meanwhile.
SELECT c.claim_id, r.intent_id, r.attempt, r.tries, r.first_attempt_at,
       extract(epoch FROM c.claimed_at - r.first_attempt_at)::float8, extract(epoch FROM now() - c.claimed_at)::float8,
       r.maybe_applied, r.lookup, coalesce(r.via, ''), i.compensates, i.agent_run_id, i.step_id, i.tool_name, i.business_scope,
       coalesce(i.namespace, ''), coalesce(new_key.generation, 0), coalesce(new_key.doubt, false),
       EXISTS (SELECT FROM outbox.saga s WHERE s.agent_run_id = i.agent_run_id)
FROM outbox.claim c
CROSS JOIN unnest(c.intent_ids, c.attempts, c.tries, c.first_attempt_ats, c.maybe_applied, c.lookups, c.vias)
  AS r (intent_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via)
JOIN outbox.intent i ON i.id = r.intent_id
LEFT JOIN outbox.generation new_key ON new_key.intent_id = r.intent_id
WHERE c.claim_id = ANY ($1::bigint[])
  AND NOT EXISTS (SELECT FROM outbox.attempt a WHERE a.intent_id = r.intent_id AND a.attempt = r.attempt);
