-- Opens an incident for each gate that is shut because the provider refused the daemon, on the oldest row that waits for
-- the gate. If no row waits, because a fallback serves all rows or the gate belongs to a fallback, the incident is on the
-- intent that was refused last. If no intent is known, the incident has none. An intent has one incident of a kind,
-- whose detail names all of its gates. It is resolved once none of these gates is shut for this reason any more.
WITH shut AS MATERIALIZED (
  SELECT reason AS kind, name, refused_intent FROM outbox.provider WHERE state <> 'closed' AND reason = 'credentials_refused'
  UNION ALL
  SELECT reason, name, refused_intent FROM outbox.tool WHERE state <> 'closed' AND reason = ANY (ARRAY['forbidden', 'misconfigured'])
), known AS MATERIALIZED (
  SELECT i.id, i.kind, i.intent_id, shut.name
  FROM outbox.incident i LEFT JOIN shut ON shut.kind = i.kind AND strpos(', ' || i.detail || ', ', ', ' || shut.name || ', ') > 0  -- a name may hold the separator
  WHERE i.kind = ANY (ARRAY['credentials_refused', 'forbidden', 'misconfigured']) AND i.resolved_at IS NULL
), fresh AS MATERIALIZED (
  SELECT shut.kind, shut.name, coalesce(i.id, 0) AS intent_id, i.agent_run_id
  FROM shut LEFT JOIN LATERAL (
    SELECT r.intent_id FROM outbox.queued_tenants(shut.name) AS t (tenant) CROSS JOIN LATERAL (
      SELECT q.next_attempt_at, q.intent_id FROM outbox.queue q WHERE q.provider = shut.name AND q.tenant = t.tenant
      ORDER BY q.next_attempt_at, q.intent_id LIMIT 1) r
    ORDER BY r.next_attempt_at, r.intent_id LIMIT 1) oldest ON true
  LEFT JOIN outbox.intent i ON i.id = coalesce(oldest.intent_id, shut.refused_intent)
  WHERE NOT EXISTS (SELECT FROM known WHERE known.kind = shut.kind AND known.name = shut.name)
), gates AS MATERIALIZED (  -- the gates of each incident from now on
  SELECT kind, intent_id, max(agent_run_id) AS agent_run_id, pg_catalog.string_agg(name, ', '::text ORDER BY name) AS detail, bool_or(is_fresh) AS grows
  FROM (SELECT kind, intent_id, name, NULL AS agent_run_id, false AS is_fresh FROM known WHERE name IS NOT NULL
        UNION ALL SELECT kind, intent_id, name, agent_run_id, true FROM fresh) g
  GROUP BY kind, intent_id
), over AS (
  UPDATE outbox.incident SET resolved_at = now(), resolved_by = 'drainer'
  WHERE resolved_at IS NULL
    AND id IN (SELECT id FROM known WHERE NOT EXISTS (SELECT FROM gates g WHERE g.kind = known.kind AND g.intent_id = known.intent_id))
), shrunk AS (
  UPDATE outbox.incident i SET detail = g.detail
  FROM gates g WHERE NOT g.grows AND i.kind = g.kind AND i.intent_id = g.intent_id AND i.detail <> g.detail AND i.resolved_at IS NULL
)
INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail)
SELECT kind, intent_id, coalesce(agent_run_id, ''), detail FROM gates WHERE grows
ON CONFLICT (kind, intent_id) DO UPDATE SET detail = excluded.detail, opened_at = now();
