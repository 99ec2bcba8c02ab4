-- $1 channel, $2 seconds between two pages about the same group, $3 seconds between two about a group that grows,
-- $4 limit; of the incidents that the channel gets, $5 the kinds, $6 the providers and $7 the tools (null: all).
-- Returns the channel's due pages: groups that are new to it, that have grown or whose page is repeated, and groups of
-- which the last page no longer tells the state. It leaves out pages that a process is sending or has just failed to
-- send. The provider of a group that spans providers is ''. If the intent that was refused is not known any more, the
-- incident's detail lists the gates, which are providers or tools. The incident then has the name of the first gate that
-- the channel gets. It is over for a channel none of whose gates is listed any more.
WITH groups AS MATERIALIZED (
  -- Lists replace a join of each incident with each page: without statistics, such a join may have a bad plan.
  SELECT i.kind, named.provider, pg_catalog.array_agg(i.id) AS ids, pg_catalog.array_agg(tool.name) AS names, pg_catalog.array_agg(i.opened_at) AS opened,
         pg_catalog.array_agg(i.acknowledged_at IS NULL) AS open
  FROM outbox.incident i LEFT JOIN outbox.intent t ON t.id = i.intent_id
  CROSS JOIN LATERAL (
    SELECT g.name FROM pg_catalog.unnest(
      CASE WHEN t.id IS NULL AND i.kind = ANY (ARRAY['credentials_refused', 'forbidden', 'misconfigured'])
           THEN pg_catalog.string_to_array(i.detail, ', '::text) ELSE ARRAY[coalesce(t.tool_name, '')] END) WITH ORDINALITY AS g (name, place)
    WHERE ($6::text[] IS NULL OR split_part(g.name, '/'::text, 1) = ANY ($6::text[])) AND ($7::text[] IS NULL OR g.name = ANY ($7::text[]))
    ORDER BY g.place LIMIT 1) tool
  CROSS JOIN LATERAL (SELECT CASE WHEN i.kind = 'unconfigured_provider' THEN '' ELSE split_part(tool.name, '/'::text, 1) END AS provider) named
  WHERE i.resolved_at IS NULL AND i.kind = ANY ($5::text[])
  GROUP BY i.kind, named.provider
), standing AS MATERIALIZED (
  SELECT p.*, f.kind, f.opened_at, coalesce(tool.name, '') AS name, named.provider,
         coalesce(pg_catalog.lag(p.newest) OVER openings, '-infinity') AS after,
         pg_catalog.lead(p.newest) OVER openings IS NULL AS is_last
  FROM outbox.page p JOIN outbox.incident f ON f.id = p.incident_id LEFT JOIN outbox.intent t ON t.id = f.intent_id
  LEFT JOIN LATERAL (
    SELECT g.name FROM pg_catalog.unnest(
      CASE WHEN t.id IS NULL AND f.kind = ANY (ARRAY['credentials_refused', 'forbidden', 'misconfigured'])
           THEN pg_catalog.string_to_array(f.detail, ', '::text) ELSE ARRAY[coalesce(t.tool_name, '')] END) WITH ORDINALITY AS g (name, place)
    WHERE ($6::text[] IS NULL OR split_part(g.name, '/'::text, 1) = ANY ($6::text[])) AND ($7::text[] IS NULL OR g.name = ANY ($7::text[]))
    ORDER BY g.place LIMIT 1) tool ON true
  CROSS JOIN LATERAL (SELECT CASE WHEN f.kind = 'unconfigured_provider' THEN '' ELSE split_part(tool.name, '/'::text, 1) END AS provider) named
  WHERE p.channel = $1::text AND p.told IS DISTINCT FROM 'resolved' AND f.kind = ANY ($5::text[])
    AND (tool.name IS NOT NULL OR t.id IS NULL AND f.kind = ANY (ARRAY['credentials_refused', 'forbidden', 'misconfigured']))
  WINDOW openings AS (PARTITION BY f.kind, named.provider ORDER BY p.newest, p.incident_id)
), members AS (
  -- An incident belongs to the first opening with a page as new as the incident. If there is none, it belongs to the
  -- last opening.
  SELECT s.incident_id, s.generation, m.*
  FROM standing s JOIN groups g ON g.kind = s.kind AND g.provider = s.provider
  CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE u.opened_at <= s.newest AND u.is_open) AS open_of_it,
           count(*) FILTER (WHERE u.opened_at <= s.newest) AS all_of_it,
           count(*) FILTER (WHERE u.is_open) AS open_now, max(u.opened_at) FILTER (WHERE u.is_open) AS newest_now
    FROM ROWS FROM (pg_catalog.unnest(g.opened), pg_catalog.unnest(g.open)) AS u (opened_at, is_open)
    WHERE u.opened_at > s.after AND (s.is_last OR u.opened_at <= s.newest)) m
), stands AS MATERIALIZED (
  SELECT s.*, m.open_now, m.newest_now,
         CASE WHEN m.open_of_it > 0 THEN 'open' WHEN m.all_of_it > 0 THEN 'acknowledged' ELSE 'resolved' END AS state
  FROM standing s LEFT JOIN members m USING (incident_id, generation)
), fresh AS (
  SELECT f.*
  FROM groups g LEFT JOIN stands s ON s.kind = g.kind AND s.provider = g.provider AND s.is_last
  CROSS JOIN LATERAL (
    SELECT min(u.id) AS id, (pg_catalog.array_agg(u.name ORDER BY u.id))[1] AS name, count(*) AS open_now, max(u.opened_at) AS newest_now
    FROM ROWS FROM (pg_catalog.unnest(g.ids), pg_catalog.unnest(g.names), pg_catalog.unnest(g.opened), pg_catalog.unnest(g.open)) AS u (id, name, opened_at, is_open)
    WHERE u.is_open AND (s.state IS NULL OR u.opened_at > s.newest)) f
  WHERE s.state IS DISTINCT FROM 'open' AND f.open_now > 0
), due AS (
  SELECT f.id, f.name, i.generation, 'open' AS state, f.open_now AS count, f.newest_now AS newest, p.tried_at, p.left_until, i.opened_at,
         coalesce(p.sends, 0) AS sends, CASE WHEN p.tried_at IS NULL THEN 'new' ELSE 'missed' END AS news
  FROM fresh f JOIN outbox.incident i ON i.id = f.id
  LEFT JOIN outbox.page p ON p.channel = $1::text AND p.incident_id = i.id AND p.generation = i.generation
  UNION ALL
  SELECT incident_id, name, generation, state, CASE state WHEN 'open' THEN open_now ELSE count END, CASE state WHEN 'open' THEN newest_now ELSE newest END,
         tried_at, left_until, opened_at, sends,
         CASE WHEN told IS NULL THEN 'missed'  -- or two processes sent the page at the same time
              WHEN told <> state THEN 'end'
              WHEN open_now > count OR newest_now > newest OR tries > 0 THEN 'growth'
              ELSE 'repetition' END
  FROM stands
  WHERE told IS DISTINCT FROM state
     OR state = 'open' AND (
          tries > 0 OR told_at <= now() - make_interval(secs => $2::float8) OR told_at > now() + interval '1 minute'
          OR (open_now > count OR newest_now > newest) AND (open_now >= 2 * count OR told_at <= now() - make_interval(secs => $3::float8)))
), next AS (
  -- Each kind of page has its share. In a strict order, a kind that never ends would keep out the next: new groups would
  -- keep out missed pages, and pages that the channel refuses would keep out repetitions. random() gives each kind a
  -- turn even if only a single page is asked for each time.
  SELECT *, CASE news WHEN 'new' THEN 1 WHEN 'repetition' THEN 4 ELSE 2 END::float8
            * ((row_number() OVER (PARTITION BY news ORDER BY coalesce(tried_at, opened_at), id))::float8 - random()) AS turn
  FROM due
  WHERE left_until IS NULL OR left_until <= now() OR tried_at > now() + interval '1 minute'
  ORDER BY turn LIMIT $4::int
)
SELECT (SELECT left(encode(sha256(key), 'hex'::text), 12) FROM outbox.fingerprint_key),  -- identifies the outbox; the hash does not reveal the key
       n.id, n.generation, n.state, i.kind, i.intent_id, n.name,
       coalesce(outbox.idempotency_key(t.agent_run_id, t.step_id, t.tool_name, t.business_scope, t.namespace, NULL,
         (SELECT generation FROM outbox.generation g WHERE g.intent_id = t.id)), ''), i.opened_at,
       CASE n.state WHEN 'resolved' THEN coalesce(i.resolved_by, '') WHEN 'acknowledged' THEN coalesce(i.acknowledged_by, '') ELSE '' END,
       n.count, i.generation <> n.generation OR i.acknowledged_at IS NOT NULL OR i.resolved_at IS NOT NULL, n.newest, n.sends
FROM next n JOIN outbox.incident i USING (id) LEFT JOIN outbox.intent t ON t.id = i.intent_id
ORDER BY n.turn;
