-- $1 kinds, $2 limit of the counts, $3 how many of the longest open incidents, and of the pages, are looked at to find an
-- incident about which no channel was paged, $4 the kinds of severity page. A page is about the group of a kind and a
-- provider. If the intent that was refused is not known any more, the providers are those of the gates in the detail.
WITH told AS MATERIALIZED (
  SELECT f.kind, CASE WHEN f.kind = 'unconfigured_provider' THEN '' ELSE coalesce(t.provider, split_part(gate.name, '/'::text, 1), '') END AS provider, max(p.newest) AS newest
  FROM (SELECT incident_id, newest FROM outbox.page WHERE told IS DISTINCT FROM 'resolved' AND told IS NOT NULL LIMIT $3::int) p
  JOIN outbox.incident f ON f.id = p.incident_id LEFT JOIN outbox.intent t ON t.id = f.intent_id
  LEFT JOIN LATERAL pg_catalog.unnest(pg_catalog.string_to_array(f.detail, ', '::text)) AS gate (name)
    ON t.id IS NULL AND f.kind = ANY (ARRAY['credentials_refused', 'forbidden', 'misconfigured'])
  GROUP BY 1, 2
)
SELECT k.kind, counted.rows,
       coalesce(extract(epoch FROM now() - oldest.opened_at), 0)::float8,
       coalesce(extract(epoch FROM now() - unpaged.opened_at), 0)::float8
FROM pg_catalog.unnest($1::text[]) AS k (kind)
CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
  SELECT FROM outbox.incident i
  WHERE i.kind = k.kind AND i.acknowledged_at IS NULL AND i.resolved_at IS NULL LIMIT $2::int) o) counted
LEFT JOIN LATERAL (
  SELECT opened_at FROM outbox.incident i
  WHERE i.kind = k.kind AND i.acknowledged_at IS NULL AND i.resolved_at IS NULL
  ORDER BY opened_at LIMIT 1) oldest ON true
LEFT JOIN LATERAL (
  SELECT o.opened_at FROM (
    SELECT intent_id, opened_at, detail FROM outbox.incident i
    WHERE i.kind = k.kind AND k.kind = ANY ($4::text[]) AND i.acknowledged_at IS NULL AND i.resolved_at IS NULL
    ORDER BY opened_at LIMIT $3::int) o
  WHERE NOT EXISTS (SELECT FROM told LEFT JOIN outbox.intent t ON t.id = o.intent_id
    WHERE told.kind = k.kind AND told.newest >= o.opened_at
      AND told.provider = CASE WHEN k.kind = 'unconfigured_provider' THEN '' ELSE coalesce(t.provider,
        CASE WHEN k.kind = ANY (ARRAY['credentials_refused', 'forbidden', 'misconfigured']) THEN split_part(split_part(o.detail, ', '::text, 1), '/'::text, 1) END, '') END)
  ORDER BY o.opened_at LIMIT 1) unpaged ON true;
