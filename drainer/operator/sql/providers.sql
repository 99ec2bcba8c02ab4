-- $1 provider; empty for all.
SELECT p.name, p.paused, p.state, CASE WHEN p.state <> 'closed' THEN p.open_until END, o.done_at, o.operator, o.reason
FROM outbox.provider p
LEFT JOIN LATERAL (
  SELECT * FROM outbox.operation o WHERE o.provider = p.name ORDER BY o.id DESC LIMIT 1
) o ON true
WHERE $1::text IN ('', p.name)
ORDER BY p.name;
