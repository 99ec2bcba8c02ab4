-- +goose Up

-- Dead letters and other settlements without completion: a small part of the history.
CREATE INDEX attempt_not_completed ON outbox.attempt (status, intent_id)
  WHERE next_attempt_at IS NULL AND status <> 'completed';

-- Only an attempt after the first can contradict another one, and such attempts are few.
CREATE INDEX attempt_repeated ON outbox.attempt (intent_id)
  WHERE attempt > 1 AND (provider_ref IS NOT NULL OR outcome = 'completed');

-- Rows are appended in the order of time, so a few bytes for each range of blocks suffice to find a window.
CREATE INDEX attempt_finished_at ON outbox.attempt USING brin (finished_at) WITH (autosummarize = on);
CREATE INDEX intent_created_at ON outbox.intent USING brin (created_at) WITH (autosummarize = on);

-- Intents for whose key the provider returned several references: it forgot the key or never knew it.
CREATE VIEW outbox.audit_conflicting_refs AS
SELECT i.id AS intent_id, i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.provider,
       outbox.idempotency_key(i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.namespace, NULL,
         (SELECT generation FROM outbox.generation g WHERE g.intent_id = i.id)) AS idempotency_key,
       seen.provider_refs, seen.first_seen_at, seen.last_seen_at
FROM (SELECT DISTINCT intent_id FROM outbox.attempt WHERE attempt > 1 AND provider_ref IS NOT NULL) repeated
CROSS JOIN LATERAL (
  SELECT array_agg(DISTINCT a.provider_ref) AS provider_refs,
         min(a.finished_at) AS first_seen_at, max(a.finished_at) AS last_seen_at
  FROM outbox.attempt a WHERE a.intent_id = repeated.intent_id AND a.provider_ref IS NOT NULL) seen
JOIN outbox.intent i ON i.id = repeated.intent_id
WHERE cardinality(seen.provider_refs) > 1;

-- Intents that completed again in an attempt that was neither a replay nor a lookup. Either there was a second
-- effect, or the provider does not mark its replays.
CREATE VIEW outbox.audit_repeated_completions AS
SELECT i.id AS intent_id, i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.provider,
       outbox.idempotency_key(i.agent_run_id, i.step_id, i.tool_name, i.business_scope, i.namespace, NULL,
         (SELECT generation FROM outbox.generation g WHERE g.intent_id = i.id)) AS idempotency_key,
       seen.completions, seen.provider_refs, seen.first_completed_at, seen.last_completed_at
FROM (
  SELECT DISTINCT later.intent_id FROM outbox.attempt later
  WHERE later.attempt > 1 AND later.outcome = 'completed' AND NOT later.replayed AND NOT later.lookup
    AND EXISTS (SELECT FROM outbox.attempt earlier
                WHERE earlier.intent_id = later.intent_id AND earlier.attempt < later.attempt AND earlier.outcome = 'completed')
) repeated
CROSS JOIN LATERAL (
  SELECT count(*) AS completions,
         array_agg(DISTINCT a.provider_ref) FILTER (WHERE a.provider_ref IS NOT NULL) AS provider_refs,
         min(a.finished_at) AS first_completed_at, max(a.finished_at) AS last_completed_at
  FROM outbox.attempt a WHERE a.intent_id = repeated.intent_id AND a.outcome = 'completed') seen
JOIN outbox.intent i ON i.id = repeated.intent_id;

-- +goose StatementBegin
-- Returns groups of completed intents with the same tool, scope and payload, but different runs or steps. An agent
-- that lost its step_id leaves such a group, and so does an agent that wanted the effect again. It compares the
-- intents that were enqueued in [since, until).
CREATE FUNCTION outbox.audit_repeated_tasks(since timestamptz DEFAULT now() - interval '1 day',
                                            until timestamptz DEFAULT now())
RETURNS TABLE (tool_name text, business_scope text, payload jsonb, completions bigint,
               intent_ids bigint[], agent_run_ids text[], first_created_at timestamptz, last_created_at timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT i.tool_name, i.business_scope, i.payload, count(*),
         array_agg(i.id ORDER BY i.id), array_agg(DISTINCT i.agent_run_id), min(i.created_at), max(i.created_at)
  FROM outbox.intent i
  JOIN (
    -- a hash first: it narrows millions down without keeping every payload in memory
    SELECT t.tool_name, t.business_scope, jsonb_hash_extended(t.payload, 0) AS hash
    FROM outbox.intent t WHERE t.created_at >= $1 AND t.created_at < $2 AND t.compensates IS NULL
    GROUP BY 1, 2, 3 HAVING count(*) > 1
  ) twin ON (i.tool_name, i.business_scope, jsonb_hash_extended(i.payload, 0)) = (twin.tool_name, twin.business_scope, twin.hash)
  WHERE i.created_at >= $1 AND i.created_at < $2 AND i.compensates IS NULL
    AND EXISTS (SELECT FROM outbox.attempt a WHERE a.intent_id = i.id AND a.status = 'completed')
  GROUP BY i.tool_name, i.business_scope, i.payload HAVING count(*) > 1
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns how often agents enqueued a key that existed already: a row for each provider and window in which it had
-- intents or duplicates. rate is the duplicates for each new intent, or null if there were only duplicates.
CREATE FUNCTION outbox.audit_duplicate_rate(since timestamptz DEFAULT now() - interval '1 day',
                                            until timestamptz DEFAULT now(),
                                            width interval DEFAULT interval '1 hour')
RETURNS TABLE (provider text, window_start timestamptz, intents bigint, duplicates bigint, rate numeric)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT e.provider, e.window_start, sum(e.intents)::bigint, sum(e.duplicates)::bigint,
         round(sum(e.duplicates) / nullif(sum(e.intents), 0), 4)
  FROM (
    SELECT i.provider, date_bin($3, i.created_at, $1) AS window_start, count(*) AS intents, 0 AS duplicates
    FROM outbox.intent i WHERE i.created_at >= $1 AND i.created_at < $2 GROUP BY 1, 2
    UNION ALL
    SELECT i.provider, date_bin($3, d.seen_at, $1), 0, count(*)
    FROM outbox.duplicate d JOIN outbox.intent i ON i.id = d.intent_id
    WHERE d.seen_at >= $1 AND d.seen_at < $2 GROUP BY 1, 2
  ) e GROUP BY 1, 2 ORDER BY 1, 2
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns, by tool, how many attempts may have been sent for each intent that a provider completed in [since,
-- until).
CREATE FUNCTION outbox.audit_attempts_per_completion(since timestamptz DEFAULT now() - interval '1 day',
                                                     until timestamptz DEFAULT now())
RETURNS TABLE (provider text, tool_name text, completions bigint, mean numeric, max bigint, p95 double precision)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT i.provider, i.tool_name, count(*), round(avg(c.attempts), 2), max(c.attempts),
         percentile_cont(0.95) WITHIN GROUP (ORDER BY c.attempts)
  FROM (
    SELECT a.intent_id,
           CASE WHEN max(a.attempt) = 1 THEN 1 ELSE (
             SELECT count(*) FROM outbox.attempt earlier
             WHERE earlier.intent_id = a.intent_id AND earlier.started_at IS NOT NULL AND NOT earlier.lookup) END AS attempts
    FROM outbox.attempt a
    WHERE a.outcome = 'completed' AND a.finished_at >= $1 AND a.finished_at < $2 GROUP BY 1
  ) c JOIN outbox.intent i ON i.id = c.intent_id
  GROUP BY 1, 2 ORDER BY 1, 2
$$;
-- +goose StatementEnd

-- The last day; call the function of the same name for another time.
CREATE VIEW outbox.audit_repeated_tasks AS SELECT * FROM outbox.audit_repeated_tasks();
CREATE VIEW outbox.audit_duplicate_rate AS SELECT * FROM outbox.audit_duplicate_rate();
CREATE VIEW outbox.audit_attempts_per_completion AS SELECT * FROM outbox.audit_attempts_per_completion();

REVOKE ALL ON FUNCTION outbox.audit_repeated_tasks, outbox.audit_duplicate_rate, outbox.audit_attempts_per_completion FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.audit_repeated_tasks, outbox.audit_duplicate_rate, outbox.audit_attempts_per_completion TO outbox_drainer, outbox_operator, outbox_auditor;
GRANT SELECT ON outbox.audit_conflicting_refs, outbox.audit_repeated_completions, outbox.audit_repeated_tasks,
                outbox.audit_duplicate_rate, outbox.audit_attempts_per_completion TO outbox_drainer, outbox_operator, outbox_auditor;

-- +goose Down
DROP VIEW outbox.audit_conflicting_refs, outbox.audit_repeated_completions, outbox.audit_repeated_tasks,
          outbox.audit_duplicate_rate, outbox.audit_attempts_per_completion;
DROP FUNCTION outbox.audit_repeated_tasks, outbox.audit_duplicate_rate, outbox.audit_attempts_per_completion;
DROP INDEX outbox.attempt_not_completed, outbox.attempt_repeated, outbox.attempt_finished_at, outbox.intent_created_at;
