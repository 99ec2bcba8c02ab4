-- $1 tables. The numbers come from Postgres's statistics, without counting.
SELECT t.name, pg_stat_get_dead_tuples(c.oid), pg_total_relation_size(c.oid::regclass)
FROM pg_catalog.unnest($1::text[]) AS t (name)
JOIN pg_class c ON c.relname = t.name AND c.relnamespace = 'outbox'::regnamespace::oid;
