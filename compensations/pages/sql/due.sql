-- $1 channel, $2 seconds between two pages, $3 and $4 one incident and
-- generation, or null for all for which no job of the kind $6 waits, $5 limit.
-- What the channel is to be told, unless a process is at it or has just failed:
-- what is open and new to it, or old news; and what it believes to be open and is not.
WITH due AS (
  SELECT i.id, i.generation, 'open' AS state, p.told, p.told_at, p.tried_at, p.left_until, i.opened_at, coalesce(p.sends, 0) AS sends
  FROM outbox.incident i
  LEFT JOIN outbox.page p ON p.channel = $1::text AND p.incident_id = i.id AND p.generation = i.generation
                         AND p.told IS DISTINCT FROM 'resolved'  -- which an open one never was; it is the index's condition
  WHERE i.resolved_at IS NULL AND i.acknowledged_at IS NULL
    AND (p.told IS DISTINCT FROM 'open' OR p.told_at <= now() - make_interval(secs => $2::float8) OR p.told_at > now() + interval '1 minute')
  UNION ALL
  SELECT p.incident_id, p.generation, now_is.state, p.told, p.told_at, p.tried_at, p.left_until, i.opened_at, p.sends
  FROM outbox.page p JOIN outbox.incident i ON i.id = p.incident_id
  CROSS JOIN LATERAL (SELECT CASE
    WHEN i.generation > p.generation OR i.resolved_at IS NOT NULL THEN 'resolved'
    WHEN i.acknowledged_at IS NOT NULL THEN 'acknowledged'
    ELSE 'open' END AS state) now_is
  WHERE p.channel = $1::text AND p.told IS DISTINCT FROM 'resolved'
    AND now_is.state <> 'open' AND now_is.state IS DISTINCT FROM p.told
), waiting AS (
  SELECT *, CASE WHEN tried_at IS NULL THEN 'new'
                 WHEN told IS NULL THEN 'missed'  -- or two senders met
                 WHEN told = state THEN 'repetition'
                 ELSE 'end' END AS kind
  FROM due
  WHERE (left_until IS NULL OR left_until <= now() OR tried_at > now() + interval '1 minute')
    AND CASE WHEN $3::bigint IS NOT NULL THEN id = $3::bigint AND generation = $4::int
             ELSE NOT EXISTS (SELECT FROM outbox.river_job j WHERE j.kind = $6::text AND j.state OPERATOR(pg_catalog.=) 'available'
               AND j.args = pg_catalog.jsonb_build_object('channel', $1::text, 'incident_id', due.id, 'generation', due.generation)) END
), next AS (
  -- Each kind has its share. In a strict order one that never ends would keep out the next: new
  -- incidents what the channel missed, pages that it refuses every repetition. Chance gives each
  -- its turn also where a single page is asked for, time after time.
  SELECT *, CASE kind WHEN 'new' THEN 1 WHEN 'repetition' THEN 4 ELSE 2 END::float8
            * ((row_number() OVER (PARTITION BY kind ORDER BY coalesce(tried_at, opened_at), id))::float8 - random()) AS turn
  FROM waiting
  ORDER BY turn LIMIT $5::int
)
SELECT n.id, n.generation, n.state, i.kind, i.intent_id, coalesce(t.tool_name, ''),
       coalesce(outbox.idempotency_key(t.agent_run_id, t.step_id, t.tool_name, t.business_scope, t.namespace, NULL,
         (SELECT generation FROM outbox.generation g WHERE g.intent_id = t.id)), ''), i.opened_at,
       CASE n.state WHEN 'resolved' THEN coalesce(i.resolved_by, '') WHEN 'acknowledged' THEN coalesce(i.acknowledged_by, '') ELSE '' END,
       n.sends
FROM next n JOIN outbox.incident i USING (id) LEFT JOIN outbox.intent t ON t.id = i.intent_id
ORDER BY n.turn;
