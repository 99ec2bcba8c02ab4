-- $1 kinds, $2 where counting stops, $3 how many of the longest open are looked at for one that no channel was told of.
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
    SELECT id, generation, opened_at FROM outbox.incident i
    WHERE i.kind = k.kind AND i.acknowledged_at IS NULL AND i.resolved_at IS NULL
    ORDER BY opened_at LIMIT $3::int) o
  WHERE (SELECT pg_catalog.count(p.told) FROM outbox.page p WHERE p.incident_id = o.id AND p.generation = o.generation) = 0
  ORDER BY o.opened_at LIMIT 1) unpaged ON true;
