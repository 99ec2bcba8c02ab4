-- $1 how many queued rows of each tenant are looked at, $2 how many claimed rows of all tenants, $3 only names after
-- this one, $4 how many tenants. Agents can make up names of lanes, so at most 1,000 lanes are looked at.
WITH RECURSIVE lane AS ( -- a loose index scan: one look a lane, however many rows it has
  (SELECT provider FROM outbox.queue ORDER BY provider LIMIT 1)
  UNION ALL
  SELECT (SELECT q.provider FROM outbox.queue q WHERE q.provider > lane.provider ORDER BY q.provider LIMIT 1)
  FROM lane WHERE lane.provider IS NOT NULL
), looked AS MATERIALIZED (
  -- LIMIT 1 makes each of these one index look a row
  SELECT (SELECT tenant FROM outbox.intent WHERE id = r.intent_id LIMIT 1),
         (SELECT true FROM outbox.attempt a WHERE a.intent_id = r.intent_id AND a.attempt = r.attempt LIMIT 1) AS ended
  FROM (SELECT r.intent_id, r.attempt FROM outbox.claim c
        CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(c.intent_ids), pg_catalog.unnest(c.attempts)) AS r (intent_id, attempt) LIMIT $2::int) r
)
SELECT t.name, t.role::text, coalesce(t.namespace, ''), t.weight, t.max_due, t.max_bytes, t.max_rate, t.max_in_flight,
       due.rows, queued.rows, queued.bytes,
       (SELECT count(*) FROM looked WHERE tenant = t.tenant_id AND ended IS NULL),
       (SELECT count(*) FROM looked) >= $2::int
FROM (SELECT * FROM outbox.tenant WHERE name > $3::text COLLATE "C" ORDER BY name LIMIT $4::int) t
CROSS JOIN LATERAL (SELECT count(*) AS rows, coalesce(sum(bytes), 0)::bigint AS bytes FROM (
  SELECT q.bytes FROM (SELECT provider FROM lane LIMIT 1000) lane CROSS JOIN LATERAL (
    SELECT bytes FROM outbox.queue WHERE provider = lane.provider AND tenant = t.tenant_id
    ORDER BY next_attempt_at LIMIT $1::int) q  -- in the order of the index
  LIMIT $1::int) q) queued
CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (
  SELECT FROM (SELECT provider FROM lane LIMIT 1000) lane CROSS JOIN LATERAL (
    SELECT FROM outbox.queue WHERE provider = lane.provider AND tenant = t.tenant_id AND next_attempt_at <= now()
    ORDER BY next_attempt_at LIMIT $1::int) q
  LIMIT $1::int) q) due
ORDER BY t.name;
