-- $1 statuses, $2 provider and $3 run ('': any), $4 seconds since the enqueueing, $5 limit, $6 only intents whose next
-- attempt is in the future. Reads the places where intents of these statuses can be, and not all intents. It leaves out
-- the intents of a saga that ended well, except unknown steps, which still have their incident.
SELECT s.intent_id
FROM outbox.standing s
WHERE s.intent_id IN (
    SELECT intent_id FROM outbox.queue WHERE ARRAY['pending', 'unknown'] OPERATOR(pg_catalog.&&) $1::text[]
    UNION ALL
    SELECT intent_id FROM outbox.attempt
    WHERE next_attempt_at IS NULL AND status <> 'completed' AND status = ANY ($1::text[]))
  AND s.status = ANY ($1::text[])
  AND ($2::text = '' OR s.provider = $2::text) AND ($3::text = '' OR s.agent_run_id = $3::text)
  AND s.created_at <= now() - make_interval(secs => $4::float8)
  AND (NOT $6::boolean OR s.next_attempt_at > now())
  AND ((s.status = 'unknown' AND NOT starts_with(s.step_id, 'compensate:'::text)) OR NOT EXISTS (
    SELECT FROM outbox.saga g WHERE g.agent_run_id = s.agent_run_id AND g.state IN ('compensated', 'resolved')))
ORDER BY s.intent_id LIMIT $5::int;
