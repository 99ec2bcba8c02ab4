-- The logins of docs/security.md, all with one password, which is enough to try things out.
\getenv password POSTGRES_PASSWORD
CREATE ROLE outbox_agent NOLOGIN;
CREATE ROLE outbox_drainer NOLOGIN;
CREATE ROLE outbox_operator NOLOGIN;
CREATE ROLE outbox_auditor NOLOGIN;
CREATE ROLE outbox_owner LOGIN CREATEROLE PASSWORD :'password';
CREATE ROLE drainer LOGIN PASSWORD :'password' IN ROLE outbox_drainer;
CREATE ROLE console LOGIN PASSWORD :'password' IN ROLE outbox_operator;
CREATE ROLE viewer LOGIN PASSWORD :'password' IN ROLE outbox_auditor;
CREATE ROLE agent LOGIN PASSWORD :'password' IN ROLE outbox_agent;
GRANT CREATE ON DATABASE postgres TO outbox_owner;
GRANT pg_read_all_stats TO drainer;
REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC;
ALTER ROLE outbox_owner SET search_path = pg_catalog, pg_temp;
ALTER ROLE drainer SET search_path = pg_catalog, pg_temp;
ALTER ROLE console SET search_path = pg_catalog, pg_temp;
ALTER ROLE viewer SET search_path = pg_catalog, pg_temp;
