-- $1 providers, $2 the namespace of each; null for none of its own. It enters the keys of intents
-- enqueued from now on: those that wait keep theirs. Of two daemons the last to join has its way.
INSERT INTO outbox.provider AS p (name, namespace)
SELECT name, namespace FROM unnest($1::text[], $2::text[]) AS c (name, namespace) ORDER BY name
ON CONFLICT (name) DO UPDATE SET namespace = excluded.namespace
WHERE p.namespace IS DISTINCT FROM excluded.namespace;
