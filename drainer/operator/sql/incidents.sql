-- $1 whether to list resolved incidents too, $2 kind ('': any), $3 limit, $4 only these incidents (null: any), $5 tool
-- ('': any), $6 opened then or later (null: any), $7 opened before (null: any), $8 only incidents behind this one (0:
-- all), $9 provider ('': any), $10 whether to leave out acknowledged incidents.
SELECT i.id, i.kind,
       CASE WHEN i.resolved_at IS NOT NULL THEN 'resolved' WHEN i.acknowledged_at IS NOT NULL THEN 'acknowledged' ELSE 'open' END,
       i.generation, i.intent_id, i.agent_run_id, t.tool_name, i.detail, i.opened_at,
       -- the last time, since the incident opened, that a page which counts it was sent
       (SELECT max(p.told_at) FROM outbox.page p
        JOIN outbox.incident f ON f.id = p.incident_id LEFT JOIN outbox.intent ft ON ft.id = f.intent_id
        WHERE f.kind = i.kind AND (i.kind = 'unconfigured_provider' OR ft.provider IS NOT DISTINCT FROM t.provider)
          AND p.told_at >= i.opened_at AND p.newest >= i.opened_at),
       i.acknowledged_at, i.acknowledged_by, i.reason, i.resolved_at, i.resolved_by,
       i.kind = 'compensation_failed' AND EXISTS (SELECT FROM outbox.saga s WHERE s.agent_run_id = i.agent_run_id AND s.state <> 'compensation_failed')
FROM outbox.incident i LEFT JOIN outbox.intent t ON t.id = i.intent_id
WHERE ($1::boolean OR i.resolved_at IS NULL) AND (NOT $10::boolean OR i.acknowledged_at IS NULL) AND ($2::text = '' OR i.kind = $2::text)
  AND ($4::bigint[] IS NULL OR i.id = ANY ($4::bigint[]))
  AND ($5::text = '' OR t.tool_name = $5::text) AND ($9::text = '' OR t.provider = $9::text)
  AND ($6::timestamptz IS NULL OR i.opened_at >= $6::timestamptz) AND ($7::timestamptz IS NULL OR i.opened_at < $7::timestamptz)
  AND ($8::bigint = 0 OR (i.opened_at, i.id) < (SELECT b.opened_at, b.id FROM outbox.incident b WHERE b.id = $8::bigint))
ORDER BY i.opened_at DESC, i.id DESC LIMIT $3::int;
