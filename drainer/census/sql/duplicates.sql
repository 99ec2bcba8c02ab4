-- Duplicates seen in ($1, $2].
SELECT i.provider, count(*)
FROM outbox.duplicate d JOIN outbox.intent i ON i.id = d.intent_id
WHERE d.seen_at > $1 AND d.seen_at <= $2
GROUP BY i.provider;
