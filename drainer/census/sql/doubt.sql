-- $1 tools, $2 the seconds after the first send when the end of each one's retries is near,
-- $3 how many of the oldest rows in doubt are looked at.
SELECT d.provider, count(*)
FROM (
  SELECT provider, intent_id, first_attempt_at FROM outbox.queue
  WHERE maybe_applied AND NOT lookup ORDER BY first_attempt_at LIMIT $3::int
) d
JOIN outbox.intent i ON i.id = d.intent_id
JOIN unnest($1::text[], $2::float8[]) AS t (tool, seconds) ON t.tool = i.tool_name
WHERE d.first_attempt_at < now() - make_interval(secs => t.seconds)
GROUP BY d.provider;
