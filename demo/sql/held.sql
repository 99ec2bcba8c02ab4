SELECT count(*)
FROM outbox.claim c CROSS JOIN unnest(c.intent_ids, c.attempts) AS r (intent_id, attempt)
WHERE c.worker_id::text = $1
  AND NOT EXISTS (SELECT FROM outbox.attempt a WHERE (a.intent_id, a.attempt) = (r.intent_id, r.attempt));
