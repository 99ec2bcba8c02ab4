-- $1 runs, $2 the versions of their sagas, $3 how many bytes of payloads and responses to return, $4 how many bytes
-- a step may have that is not the first, $5 the plans that are not written down yet, $6 the tools whose undo's
-- payload is made of the step's payload, $7 the tools whose undo's payload is made of the step's response. Payloads
-- and responses of other tools are not returned, and count no bytes.
-- Returns, for each run, the steps at the next 7 places of its plan that are still completed, and the status of their
-- undos. Only one step of a run is undone at a time, so 7 places are enough. Attempts before the newest are read
-- only if there can be any, and if the newest does not tell enough.
-- Bytes are those of the text: a few bytes of jsonb can be a megabyte of text. A large response is counted with the
-- size that it can have at most. Steps beyond the bytes are left to the next look.
WITH next AS (
  SELECT s.agent_run_id, s.xmin::text AS version, s.place + coalesce(at.n, 8) - 1 AS place, pg_catalog.cardinality(s.plan) AS planned, at.*,
         at.is_final AND s.place + 6 >= pg_catalog.cardinality(s.plan) AS is_last
  FROM unnest($1::text[], $2::text[], $5::text[]) AS asked (run, version, plan)
  CROSS JOIN LATERAL (
    SELECT agent_run_id, xmin, coalesce(asked.plan::bigint[], plan) AS plan, CASE WHEN asked.plan IS NULL THEN place ELSE 1 END AS place
    FROM outbox.saga WHERE agent_run_id = asked.run AND xmin::text = asked.version LIMIT 1
  ) s
  LEFT JOIN LATERAL (
    SELECT p.n::int, p.intent_id, row_number() OVER places AS nth, pg_catalog.lead(p.n) OVER places IS NULL AS is_final,
           newest.attempt, newest.outcome, newest.outcome IN ('completed', 'resolved') AS is_effect, newest.response, newest.provider_ref, newest.served_by,
           CASE WHEN newest.outcome = 'completed' AND NOT newest.lookup THEN newest.started_at END AS started_at
    FROM pg_catalog.unnest(s.plan[s.place : s.place + 6]) WITH ORDINALITY AS p (intent_id, n)
    CROSS JOIN LATERAL (SELECT * FROM outbox.attempt a WHERE a.intent_id = p.intent_id ORDER BY a.attempt DESC LIMIT 1) newest
    WHERE newest.status = 'completed'
    WINDOW places AS (ORDER BY p.n)
  ) at ON true
), step AS (
  SELECT next.agent_run_id, next.version, next.place, next.planned, next.intent_id, coalesce(next.nth, 1) AS nth, next.is_last,
         i.step_id, i.tool_name, i.business_scope, i.payload, i.payload_bytes, i.namespace,
         done.response, done.provider_ref, coalesce(done.served_by, doubt.served_by) AS served_by,
         coalesce(coalesce(done.served_by, doubt.served_by) || '/' || substr(i.tool_name, strpos(i.tool_name, '/'::text) + 1), i.tool_name) AS tool,
         -- since when the effect can exist at the earliest: the window to undo it begins there
         extract(epoch FROM now() - CASE WHEN next.attempt = 1 THEN next.started_at ELSE (
           SELECT min(a.started_at) FROM outbox.attempt a
           WHERE a.intent_id = next.intent_id AND NOT a.lookup AND a.outcome IN ('completed', 'ambiguous', 'lost', 'in_flight')) END)::float8 AS age,
         -- a new key needs an attempt and an operator's entry before it, and an attempt after it
         CASE WHEN next.attempt > 2 THEN (SELECT generation FROM outbox.generation g WHERE g.intent_id = next.intent_id) END AS generation,
         u.id AS undo_id, undo.status AS undo, undo.finished_at IS NOT NULL AS undo_ended
  FROM next
  -- LIMIT makes each of these one index look a step: a join could read all undos
  LEFT JOIN LATERAL (SELECT * FROM outbox.intent WHERE id = next.intent_id LIMIT 1) i ON true
  LEFT JOIN LATERAL (SELECT id FROM outbox.intent WHERE compensates = next.intent_id LIMIT 1) u ON true
  LEFT JOIN LATERAL (
    -- the attempt that had the effect, or the entry of the operator who resolved the intent as completed
    SELECT next.response, next.provider_ref, next.served_by, next.outcome WHERE next.is_effect
    UNION ALL (
      SELECT response, provider_ref, served_by, outcome FROM outbox.attempt a
      WHERE NOT next.is_effect AND a.intent_id = next.intent_id AND a.status = 'completed' AND a.outcome IN ('completed', 'resolved')
      ORDER BY a.attempt DESC LIMIT 1)
  ) done ON true
  LEFT JOIN LATERAL (
    -- if a human or a lookup resolved the intent, the effect is from the provider of the last attempt in doubt
    SELECT served_by FROM outbox.attempt a
    WHERE done.outcome = 'resolved' AND a.intent_id = next.intent_id AND NOT a.lookup AND a.outcome IN ('ambiguous', 'lost', 'in_flight')
    ORDER BY a.attempt DESC LIMIT 1
  ) doubt ON true
  LEFT JOIN LATERAL (SELECT status, finished_at FROM outbox.standing WHERE u.id IS NOT NULL AND intent_id = u.id LIMIT 1) undo ON true
), counted AS (
  SELECT *, sum(bytes) FILTER (WHERE is_read) OVER (ORDER BY agent_run_id, place)::bigint - bytes AS before
  FROM (SELECT *, bytes IS NOT NULL AND (nth = 1 OR bytes <= $4::bigint) AS is_read FROM (
    SELECT *, CASE WHEN undo_id IS NULL THEN
      CASE WHEN tool = ANY ($6::text[]) THEN payload_bytes ELSE 0 END +
      CASE WHEN response IS NULL OR tool <> ALL ($7::text[]) THEN 0
           WHEN pg_catalog.pg_column_size(response) <= CASE WHEN nth = 1 THEN 16384 ELSE $4::bigint END THEN octet_length(response::text)
           ELSE 2097152 END END AS bytes
    FROM step) sized) step
)
SELECT agent_run_id, version, place, planned, coalesce(intent_id, 0), coalesce(step_id, ''), coalesce(tool_name, ''), coalesce(business_scope, ''),
       CASE WHEN is_read AND tool = ANY ($6::text[]) THEN payload END, CASE WHEN is_read AND tool = ANY ($7::text[]) THEN response END,
       coalesce(provider_ref, ''), coalesce(served_by, ''), coalesce(age, 0), coalesce(undo, ''), undo_ended, coalesce(namespace, ''), coalesce(generation, 0),
       (SELECT true FROM outbox.forgotten f WHERE f.agent_run_id = counted.agent_run_id LIMIT 1) IS TRUE,
       nth > 1, coalesce(is_last, false), is_read, extract(epoch FROM now())::float8
FROM counted WHERE coalesce(before, 0) < $3::bigint ORDER BY agent_run_id, place;
