-- $1 runs, $2 their versions, $5 the plans of those that have none written down, $3 how many bytes of payloads
-- and responses to return, $4 how many bytes a step may have that is not yet next, $6 the tools of whose payloads an
-- undo's is made, $7 of whose responses: all others stay here. The steps at the next places of each plan that still stand
-- as completed, and how far they are undone. One step has its undo at a time, so that few places are looked at.
-- Bytes are those of the text, as it is read: a few bytes of jsonb can be a megabyte of it. A large response is
-- counted as large as it can be. What goes beyond the bytes is left for another look.
WITH next AS MATERIALIZED (
  SELECT s.agent_run_id, s.xmin::text AS version, s.place + coalesce(at.n, 8) - 1 AS place, pg_catalog.cardinality(s.plan) AS planned, at.intent_id,
         coalesce(at.nth, 1) AS nth, at.nth = at.found AND s.place + 6 >= pg_catalog.cardinality(s.plan) AS is_last
  FROM unnest($1::text[], $2::text[], $5::text[]) AS asked (run, version, plan)
  CROSS JOIN LATERAL (
    SELECT agent_run_id, xmin, coalesce(asked.plan::bigint[], plan) AS plan, CASE WHEN asked.plan IS NULL THEN place ELSE 1 END AS place
    FROM outbox.saga WHERE agent_run_id = asked.run AND xmin::text = asked.version LIMIT 1
  ) s
  LEFT JOIN LATERAL (
    SELECT p.n::int, p.intent_id, row_number() OVER (ORDER BY p.n) AS nth, count(*) OVER () AS found FROM pg_catalog.unnest(s.plan[s.place : s.place + 6]) WITH ORDINALITY AS p (intent_id, n)
    WHERE (SELECT status FROM outbox.attempt a WHERE a.intent_id = p.intent_id ORDER BY a.attempt DESC LIMIT 1) = 'completed'
  ) at ON true
), step AS (
  SELECT next.*, i.step_id, i.tool_name, i.business_scope, i.payload,
         done.response, done.provider_ref, coalesce(done.served_by, doubt.served_by) AS served_by,
         extract(epoch FROM now() - effect.earliest)::float8 AS age,
         coalesce(coalesce(done.served_by, doubt.served_by) || '/' || substr(i.tool_name, strpos(i.tool_name, '/'::text) + 1), i.tool_name) AS tool,
         i.namespace, (SELECT generation FROM outbox.generation g WHERE g.intent_id = i.id) AS generation,
         undo.status AS undo, undo.finished_at IS NOT NULL AS undo_ended,
         CASE WHEN u.id IS NULL THEN
           i.payload_bytes + CASE WHEN done.response IS NULL THEN 0
                                  WHEN pg_catalog.pg_column_size(done.response) <= CASE WHEN next.nth = 1 THEN 16384 ELSE $4::bigint END THEN octet_length(done.response::text)
                                  ELSE 2097152 END END AS bytes
  FROM next
  LEFT JOIN outbox.intent i ON i.id = next.intent_id
  LEFT JOIN LATERAL (
    -- the attempt that had the effect, or the operator who said so
    SELECT response, provider_ref, served_by, outcome FROM outbox.attempt a
    WHERE a.intent_id = i.id AND a.status = 'completed' AND a.outcome IN ('completed', 'resolved')
    ORDER BY a.attempt DESC LIMIT 1
  ) done ON true
  LEFT JOIN LATERAL (
    -- what a human or a lookup found to be completed was done by the one who left the doubt
    SELECT served_by FROM outbox.attempt a
    WHERE done.outcome = 'resolved' AND a.intent_id = i.id AND NOT a.lookup AND a.outcome IN ('ambiguous', 'lost', 'in_flight')
    ORDER BY a.attempt DESC LIMIT 1
  ) doubt ON true
  LEFT JOIN LATERAL (
    -- when the effect can have happened at the earliest: the window to undo it counts from there
    SELECT min(started_at) AS earliest FROM outbox.attempt a
    WHERE a.intent_id = i.id AND NOT a.lookup AND a.outcome IN ('completed', 'ambiguous', 'lost', 'in_flight')
  ) effect ON true
  LEFT JOIN outbox.intent u ON u.compensates = i.id
  LEFT JOIN outbox.standing undo ON undo.intent_id = u.id
), counted AS (
  SELECT *, sum(bytes) FILTER (WHERE is_read) OVER (ORDER BY agent_run_id, place)::bigint - bytes AS before
  FROM (SELECT *, bytes IS NOT NULL AND (nth = 1 OR bytes <= $4::bigint) AS is_read FROM step) step
)
SELECT agent_run_id, version, place, planned, coalesce(intent_id, 0), coalesce(step_id, ''), coalesce(tool_name, ''), coalesce(business_scope, ''),
       CASE WHEN is_read AND tool = ANY ($6::text[]) THEN payload END, CASE WHEN is_read AND tool = ANY ($7::text[]) THEN response END,
       coalesce(provider_ref, ''), coalesce(served_by, ''), coalesce(age, 0), coalesce(undo, ''), undo_ended, coalesce(namespace, ''), coalesce(generation, 0),
       EXISTS (SELECT FROM outbox.forgotten f WHERE f.agent_run_id = counted.agent_run_id),
       nth > 1, coalesce(is_last, false), is_read, extract(epoch FROM now())::float8
FROM counted WHERE coalesce(before, 0) < $3::bigint ORDER BY agent_run_id, place;
