-- $1 intents. Returns those that are recorded as without an effect or as unknown, or that wait for another attempt.
SELECT (n - 1)::int FROM pg_catalog.unnest($1::bigint[]) WITH ORDINALITY AS e (intent_id, n)
CROSS JOIN LATERAL (SELECT status, next_attempt_at FROM outbox.attempt a
                    WHERE a.intent_id = e.intent_id ORDER BY a.attempt DESC LIMIT 1) newest
WHERE (status IN ('failed', 'cancelled', 'unknown') AND next_attempt_at IS NULL)
   OR EXISTS (SELECT FROM outbox.queue q WHERE q.intent_id = e.intent_id)
ORDER BY n;
