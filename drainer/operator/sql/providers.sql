-- $1 provider or operation; '': all providers, and the operations that are shut.
SELECT p.name, p.paused, p.state, p.reason, p.shut_at, CASE WHEN p.state <> 'closed' THEN p.open_until END, o.done_at, o.operator, o.reason
FROM (
  SELECT name, paused, state, reason, shut_at, open_until FROM outbox.provider
  UNION ALL
  SELECT name, false, state, reason, shut_at, open_until FROM outbox.tool WHERE state <> 'closed'
) p
LEFT JOIN LATERAL (
  SELECT * FROM outbox.operation o WHERE o.provider = p.name ORDER BY o.id DESC LIMIT 1
) o ON true
WHERE $1::text IN ('', p.name)
ORDER BY p.name;
