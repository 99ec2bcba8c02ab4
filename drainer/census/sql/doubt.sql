-- $1 tools, $2 how many seconds after a first send the end of each tool's retries is near, $3 how many of the oldest
-- rows in doubt are looked at.
WITH oldest AS MATERIALIZED (
  SELECT provider, intent_id, first_attempt_at FROM outbox.queue
  WHERE maybe_applied AND NOT lookup ORDER BY first_attempt_at LIMIT $3::int
), doubted AS MATERIALIZED (
  SELECT provider, first_attempt_at, (SELECT i.tool_name FROM outbox.intent i WHERE i.id = o.intent_id) AS tool FROM oldest o
)
SELECT d.provider, count(*)
FROM doubted d JOIN unnest($1::text[], $2::float8[]) AS t (tool, seconds) ON t.tool = d.tool
WHERE d.first_attempt_at < now() - make_interval(secs => t.seconds)
GROUP BY d.provider;
