-- $1 operations that this worker knows, $2 those of them whose provider has a fallback, $3 limit of rows. Moves parked rows
-- unchanged to their provider's lane. They were parked because another worker did not know the operation, or because its
-- breaker was open. While the breaker is open they stay, unless the provider itself is shut and its fallback may take them.
WITH known AS (
  DELETE FROM outbox.queue WHERE ctid = ANY (ARRAY(
    SELECT parked.ctid FROM pg_catalog.unnest($1::text[]) AS t (tool) CROSS JOIN LATERAL (
      SELECT ctid FROM outbox.queue WHERE provider = t.tool ORDER BY tenant, next_attempt_at, intent_id LIMIT $3::int
      FOR UPDATE SKIP LOCKED) parked
    WHERE NOT EXISTS (SELECT FROM outbox.tool g WHERE g.name = t.tool AND g.state <> 'closed')
      OR (t.tool = ANY ($2::text[])
        AND EXISTS (SELECT FROM outbox.provider p WHERE p.name = split_part(t.tool, '/'::text, 1) AND p.state <> 'closed'))
    LIMIT $3::int))
  RETURNING *
)
INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via, bytes, tenant, era)
SELECT split_part(provider, '/'::text, 1), next_attempt_at, intent_id, agent_run_id, attempt, tries, first_attempt_at, maybe_applied, lookup, via, bytes, tenant, era
FROM known;
