SELECT i.provider, count(*) FROM outbox.duplicate d JOIN outbox.intent i ON i.id = d.intent_id GROUP BY i.provider;
