-- $1 providers, $2 the namespace of each, or null. It becomes part of the keys of intents that are enqueued from now on;
-- waiting intents keep their keys. If two daemons differ, the last one to join wins.
INSERT INTO outbox.provider AS p (name, namespace)
SELECT name, namespace FROM unnest($1::text[], $2::text[]) AS c (name, namespace) ORDER BY name
ON CONFLICT (name) DO UPDATE SET namespace = excluded.namespace
WHERE p.namespace IS DISTINCT FROM excluded.namespace;
