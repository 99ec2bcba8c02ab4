-- $1 tools that this worker knows, $2 how many rows at most. Rows that another worker parked go to their
-- provider's lane, as they were.
WITH known AS (
  DELETE FROM outbox.queue WHERE ctid = ANY (ARRAY(
    SELECT parked.ctid FROM pg_catalog.unnest($1::text[]) AS t (tool) CROSS JOIN LATERAL (
      SELECT ctid FROM outbox.queue WHERE provider = t.tool ORDER BY next_attempt_at, intent_id LIMIT $2::int
      FOR UPDATE SKIP LOCKED) parked
    LIMIT $2::int))
  RETURNING *
)
INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via, bytes)
SELECT split_part(provider, '/'::text, 1), next_attempt_at, intent_id, agent_run_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via, bytes
FROM known;
