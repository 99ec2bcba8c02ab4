-- +goose Up

-- Settings of the schema's owner, which apply to all logins. Only the owner writes here.
CREATE TABLE outbox.setting (
  name  text COLLATE "C" PRIMARY KEY
        CHECK (name IN ('namespace', 'unknown_tools', 'require_state', 'retention_floor') OR starts_with(name, 'retention_floor/')),
  value text NOT NULL,
  CHECK (NOT starts_with(name, 'retention_floor') OR value::interval >= interval '1 hour'),
  CHECK (name <> 'unknown_tools' OR value IN ('refuse', 'accept')),
  CHECK (name <> 'require_state' OR value IN ('off', 'warn', 'error'))
);

-- The tenants, which are walled off from each other. Only the schema's owner writes here. A login belongs to the
-- tenant whose role was granted to it, directly or through other roles. Without rows there are no walls.
CREATE TABLE outbox.tenant (
  tenant_id smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name      text COLLATE "C" NOT NULL UNIQUE CHECK (octet_length(name) BETWEEN 1 AND 255),
  role      name NOT NULL UNIQUE,
  namespace text COLLATE "C" CHECK (namespace <> ''),  -- part of the keys of its new intents; null: the provider's namespace, or else the outbox's
  weight    int NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 1000),  -- its share of the work, relative to the weights of other tenants
  -- Limits of its enqueues; null: no limit.
  max_due   int CHECK (max_due > 0),  -- intents that are due at once
  max_bytes bigint CHECK (max_bytes > 0),  -- of payloads and headers in the queue
  max_rate  int CHECK (max_rate BETWEEN 1 AND 1000000),  -- intents per second
  -- A limit of its claims; null: no limit.
  max_in_flight int CHECK (max_in_flight > 0),  -- intents in flight at each provider
  limited_after bigint  -- every later claim of its rows has it in claim.tenant; see outbox.begin_limit
);

-- The tenant of each run that took a step since there are tenants. The row is deleted with the last intent of its
-- run.
CREATE TABLE outbox.run (
  agent_run_id text COLLATE "C" PRIMARY KEY,
  tenant       smallint  -- as in outbox.intent
);

-- The intents that agents committed. Rows are never updated.
CREATE TABLE outbox.intent (
  id             bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
  agent_run_id   text COLLATE "C" NOT NULL,
  step_id        text COLLATE "C" NOT NULL,
  tool_name      text COLLATE "C" NOT NULL,
  business_scope text COLLATE "C" NOT NULL,
  provider       text COLLATE "C" NOT NULL GENERATED ALWAYS AS (split_part(tool_name, '/', 1)) STORED,
  payload        jsonb NOT NULL,
  headers        jsonb,
  not_before     timestamptz,
  compensates    bigint,  -- the intent that this one undoes
  namespace      text COLLATE "C",  -- part of its key, fixed when it is enqueued; null: none, which takes no bytes
  tenant         smallint,  -- of the login that enqueued it; null: no tenant. An undo has its step's tenant
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  payload_bytes  int NOT NULL GENERATED ALWAYS AS (octet_length(payload::text)) STORED,  -- of the text that a claim reads
  PRIMARY KEY (agent_run_id, step_id, tool_name, business_scope),
  -- Postgres reads the text of each constraint again for every INSERT, so short constraints are faster.
  CONSTRAINT intent_parts_not_empty CHECK ('' <> ALL (ARRAY[agent_run_id, step_id, provider, business_scope])),
  CONSTRAINT intent_parts_size CHECK (greatest(octet_length(agent_run_id), octet_length(step_id),
                                               octet_length(tool_name), octet_length(business_scope)) <= 255),
  -- A payload that its readers cannot take would block each of them. A few bytes of jsonb can be 130 kB of text.
  CONSTRAINT intent_payload_size CHECK (payload_bytes <= 1048576),
  CONSTRAINT intent_headers_size CHECK (octet_length(headers::text) <= 65536),
  CONSTRAINT intent_not_before_ends CHECK (not_before < '9999-01-01 00:00:00+00'),
  -- Agents cannot set compensates, so they cannot take the key of an undo.
  CONSTRAINT intent_undo_step CHECK ((compensates IS NOT NULL) = starts_with(step_id, 'compensate:'))
);

-- No plan of the hot path depends on statistics of these columns, and ANALYZE would sort a sample of their values
-- in the middle of a drain.
ALTER TABLE outbox.intent ALTER payload SET STATISTICS 0, ALTER headers SET STATISTICS 0;

CREATE UNIQUE INDEX intent_compensates ON outbox.intent (compensates) WHERE compensates IS NOT NULL;

-- Intents to which an operator gave a new key. They are few, so a statement that makes keys mostly finds this
-- table empty.
CREATE TABLE outbox.generation (
  intent_id  bigint PRIMARY KEY,
  generation int NOT NULL CHECK (generation > 1),  -- of its newest key; without a row it is 1
  doubt      boolean NOT NULL  -- a request under an older key may have been applied, and may still arrive
);

-- Pending intents only. Rows are inserted and deleted, never updated.
CREATE TABLE outbox.queue (  -- columns of fixed width come first, as in outbox.attempt
  next_attempt_at  timestamptz NOT NULL,
  intent_id        bigint NOT NULL UNIQUE,
  first_attempt_at timestamptz,             -- null until a request may have been sent
  attempt          int NOT NULL DEFAULT 0,  -- the last number used; it only ever grows
  tries            int NOT NULL DEFAULT 0,  -- the count that max_attempts limits
  bytes            int NOT NULL DEFAULT 0,  -- of its intent's payload and headers; they count towards the limit of a claim
  era              int NOT NULL DEFAULT 0,  -- the outbox's era when it was queued; see outbox.history
  tenant           smallint NOT NULL DEFAULT 0,     -- its intent's tenant; 0: no tenant
  maybe_applied    boolean NOT NULL DEFAULT false,
  lookup           boolean NOT NULL DEFAULT false,  -- the next attempt is a lookup, which does not act
  provider         text COLLATE "C" NOT NULL,  -- or provider/operation, if a daemon does not know the operation, or if its breaker is open
  agent_run_id     text COLLATE "C" NOT NULL,  -- its intent's run: a claim checks whether the run is rolled back without reading the intent
  via              text COLLATE "C",        -- the fallback that may have applied it; null: its own provider; its own provider's name: either one
  PRIMARY KEY (provider, tenant, next_attempt_at, intent_id)
) WITH (
  -- Every row is deleted soon. So vacuum starts at a number of dead rows, and not at a share of a table size that
  -- changes quickly, and it runs at full speed.
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);

-- +goose StatementBegin
-- Returns the tenants that have rows in a lane. Each tenant costs one index look-up, however many rows it has.
CREATE FUNCTION outbox.queued_tenants(lane text) RETURNS SETOF smallint
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  WITH RECURSIVE walk AS (
    (SELECT tenant FROM outbox.queue WHERE provider = $1 ORDER BY tenant LIMIT 1)
    UNION ALL
    SELECT (SELECT q.tenant FROM outbox.queue q WHERE q.provider = $1 AND q.tenant > walk.tenant ORDER BY q.tenant LIMIT 1)
    FROM walk WHERE walk.tenant IS NOT NULL)
  SELECT tenant FROM walk WHERE tenant IS NOT NULL
$$;
-- +goose StatementEnd

-- The recovery point: one row for each claimed batch, one array element for each claimed intent.
CREATE TABLE outbox.claim (
  claim_id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  worker_id         uuid NOT NULL,
  provider          text COLLATE "C" NOT NULL,  -- whose rows were claimed
  server            text COLLATE "C" NOT NULL,  -- whose lane claimed them: the same provider, or its fallback
  claimed_at        timestamptz NOT NULL DEFAULT now(),
  era               int NOT NULL DEFAULT 0,  -- the outbox's era when the claim was made; rows return to the queue with it
  intent_ids        bigint[] NOT NULL,
  attempts          int[] NOT NULL,  -- the number of the attempt under this claim
  tries             int[] NOT NULL,  -- including this attempt
  first_attempt_ats timestamptz[] NOT NULL,
  maybe_applied     boolean[] NOT NULL,
  lookups           boolean[] NOT NULL,
  vias              text[] NOT NULL,  -- as in outbox.queue, or the fallback whose lane claimed the row
  tenant            smallint  -- of all its rows, if that tenant has a limit in flight; else null
) WITH (
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
-- A claim exists only briefly, so compressing its arrays would take longer than writing them uncompressed.
ALTER TABLE outbox.claim
  ALTER intent_ids SET STORAGE EXTERNAL, ALTER attempts SET STORAGE EXTERNAL, ALTER tries SET STORAGE EXTERNAL;

CREATE INDEX claim_in_flight ON outbox.claim (tenant, provider) WHERE tenant IS NOT NULL;

-- +goose StatementBegin
-- Returns how many more intents of a tenant with a limit in flight a provider's lane may claim. Claims of one
-- tenant take turns: a claim that comes before another has committed gets 0, and does not wait. The function is
-- volatile, so that its count begins after the lock, and sees the claims of all earlier holders of the lock. No
-- agent can lock the tenant's row. For a claim that is older than the limit, the intents tell the tenant.
CREATE FUNCTION outbox.room_in_flight(lane text, own smallint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  most int;
  older bigint;
BEGIN
  SELECT max_in_flight, limited_after INTO most, older FROM outbox.tenant WHERE tenant_id = own FOR NO KEY UPDATE SKIP LOCKED;
  RETURN coalesce(most - (SELECT count(*) FROM (
    SELECT FROM (
      SELECT provider, intent_ids, attempts, tenant FROM outbox.claim WHERE tenant = own
      UNION ALL
      SELECT provider, intent_ids, attempts, NULL FROM outbox.claim WHERE tenant IS NULL AND claim_id <= older) c
    CROSS JOIN LATERAL unnest(c.intent_ids, c.attempts) AS r (intent_id, attempt)
    WHERE c.provider = split_part(lane, '/', 1)
      AND NOT EXISTS (SELECT FROM outbox.attempt a WHERE a.intent_id = r.intent_id AND a.attempt = r.attempt)
      AND coalesce(c.tenant, (SELECT i.tenant FROM outbox.intent i WHERE i.id = r.intent_id)) = own
    LIMIT most) held), 0);
END $$;

-- Records the newest claim that may have missed a tenant's first limit. Every batch of a daemon locks outbox.claim
-- before it looks for limits. So this lock waits for the batches under way, and later batches see the limit.
CREATE FUNCTION outbox.begin_limit() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
  LOCK TABLE outbox.claim IN SHARE ROW EXCLUSIVE MODE;
  UPDATE outbox.tenant SET limited_after = (SELECT last_value FROM outbox.claim_claim_id_seq) WHERE tenant_id = NEW.tenant_id;
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- Deferred, so that an owner's open transaction does not keep daemons from claiming.
CREATE CONSTRAINT TRIGGER begin_limit AFTER UPDATE OF max_in_flight ON outbox.tenant DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.max_in_flight IS NULL AND NEW.max_in_flight IS NOT NULL) EXECUTE FUNCTION outbox.begin_limit();

-- Append-only: the history of each intent. Its newest row has its present status.
CREATE TABLE outbox.attempt (  -- columns of fixed width come first: a row then has no bytes of padding
  intent_id        bigint NOT NULL,
  started_at       timestamptz,
  finished_at      timestamptz NOT NULL DEFAULT now(),
  next_attempt_at  timestamptz,    -- null: settled
  retry_after_seconds float8,      -- the delay that the provider asked for
  attempt          int NOT NULL,
  http_status      int,
  replayed         boolean NOT NULL DEFAULT false,  -- the provider answered from its memory of the key
  lookup           boolean NOT NULL DEFAULT false,  -- the attempt was a lookup, which does not act
  worker           text,           -- of a daemon's row: a worker's id, or 'saga'. Operators cannot write this column
  operator         text,           -- 'operator:NAME', with the name that the operator gives. Daemons cannot write this column
  login            text NOT NULL DEFAULT session_user,  -- who wrote the row; only the owner can set it
  outcome          text NOT NULL,  -- the evidence
  status           text NOT NULL CHECK (status IN ('pending', 'completed', 'failed', 'unknown', 'cancelled',
                                                   'compensated', 'compensation_failed')),
  error            text,
  provider_ref     text,
  response         jsonb,
  response_headers jsonb,
  problem          jsonb,          -- the provider's problem details of a failure (RFC 9457)
  served_by        text,           -- the fallback that was called; null: the intent's own provider
  reason           text,           -- the operator's
  PRIMARY KEY (intent_id, attempt),
  CONSTRAINT attempt_pending_is_due CHECK (status <> 'pending' OR next_attempt_at IS NOT NULL),
  CONSTRAINT attempt_signed CHECK (num_nonnulls(worker, operator) = 1 AND NOT starts_with(worker, 'operator:')
    -- an operator's decision is no evidence from a provider, so it has outcomes of its own
    AND (worker IS NOT NULL OR starts_with(operator, 'operator:') AND outcome = ANY (ARRAY['resolved', 'cancelled', 'brought_forward',
      'retried', 'retried_may_duplicate', 'retried_new_key', 'retried_new_key_may_duplicate', 'undo_retried', 'undone_by_hand'])))
);

ALTER TABLE outbox.attempt
  ALTER response SET STATISTICS 0, ALTER response_headers SET STATISTICS 0, ALTER problem SET STATISTICS 0;

-- One row for each process. Free room on the page keeps heartbeats from writing to the index.
CREATE TABLE outbox.worker (
  worker_id  uuid PRIMARY KEY,
  providers  text[] NOT NULL,  -- that it serves; the workers of a provider divide its limits among them
  tools      text[] NOT NULL DEFAULT '{}',  -- that it knows, each as provider/operation
  fingerprints text[] NOT NULL DEFAULT '{}',  -- of its configuration of each provider, hashed with outbox.fingerprint_key
  configuration text NOT NULL DEFAULT '',     -- the fingerprint of the whole configuration, with the same key; empty: unknown
  started_at timestamptz NOT NULL DEFAULT now(),
  beat_at    timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 10);

-- One row. A reader of fingerprints who lacks this key cannot try guesses of the hashed values. The migration
-- makes the key, so that replicas with the same configuration have the same fingerprint.
CREATE TABLE outbox.fingerprint_key (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  key bytea NOT NULL CHECK (octet_length(key) = 32)
);
INSERT INTO outbox.fingerprint_key (key) SELECT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));

-- The histories of commits that this database followed; the newest row is in force. A row is added when commits
-- may have been lost.
CREATE TABLE outbox.history (
  id                int PRIMARY KEY,
  system_identifier bigint,        -- null where pg_control_system is not granted
  timeline          int,           -- null where the server hides it
  lsn               pg_lsn,        -- as of the newest heartbeat
  table_oid         oid NOT NULL,  -- of this table; a logical copy has another
  database_oid      oid NOT NULL,
  began_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  seen_at           timestamptz NOT NULL DEFAULT clock_timestamp(),  -- by the newest heartbeat
  change            text,          -- how it differs from the row before; null: it is the first
  awaited           uuid[] NOT NULL DEFAULT '{}',  -- workers that have not yet looked for the rows that were committed to them
  found             int NOT NULL DEFAULT 0,        -- how many workers found all such rows
  lost              boolean NOT NULL DEFAULT false,  -- a worker did not find all
  era               int NOT NULL,  -- of rows that are queued now; a server's clock could not tell them from rows that were queued before
  doubted_before    int NOT NULL,  -- rows that wait since an earlier era may have been applied
  doubted_through   bigint NOT NULL DEFAULT 0,  -- so may an undo of an intent up to this id, whenever it is enqueued
  accepted_by       text,          -- null: dispatches that could repeat an effect wait
  accepted_at       timestamptz,
  reason            text,          -- the operator's
  login             text           -- the operator's
);

-- +goose StatementBegin
-- Returns the server's present place in its history of commits. A value that the server hides is null.
CREATE FUNCTION outbox.whereabouts(OUT system_identifier bigint, OUT timeline int, OUT lsn pg_lsn)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  BEGIN
    lsn := pg_current_wal_lsn();
  EXCEPTION WHEN OTHERS THEN
    lsn := NULL;  -- a standby writes no log
  END;
  BEGIN
    timeline := ('x' || substr(pg_walfile_name(lsn), 1, 8))::bit(32)::int;  -- pg_control_checkpoint() would report a promotion late
  EXCEPTION WHEN OTHERS THEN
    NULL;
  END;
  BEGIN
    SELECT c.system_identifier INTO system_identifier FROM pg_control_system() c;
  EXCEPTION WHEN OTHERS THEN
    NULL;
  END;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns what lost commits may have changed: rows that were queued in an era before before_era, and intents that
-- were settled by settled_by. Before the first heartbeat at a new server these are all rows and intents, as after
-- that heartbeat.
CREATE FUNCTION outbox.in_doubt(OUT before_era int, OUT settled_by timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN is_new THEN h.era + 1 ELSE coalesce(h.doubted_before, 0) END,
         CASE WHEN is_new THEN 'infinity' ELSE coalesce((SELECT max(l.began_at) FROM outbox.history l WHERE l.doubted_before = l.era), '-infinity') END
  FROM outbox.whereabouts() here LEFT JOIN (SELECT *, tableoid FROM outbox.history ORDER BY id DESC LIMIT 1) h ON true
  CROSS JOIN LATERAL (
    SELECT h.table_oid <> h.tableoid OR h.database_oid <> (SELECT oid FROM pg_database WHERE datname = current_database())
        OR h.system_identifier <> here.system_identifier OR h.timeline <> here.timeline OR here.lsn < h.lsn AS is_new) n
$$;
-- +goose StatementEnd

-- The tools that daemons announced. They stay when the daemons end, so that a wrong name is refused while no
-- daemon runs.
CREATE TABLE outbox.tool (
  name     text COLLATE "C" PRIMARY KEY,  -- provider/operation
  provider text COLLATE "C" NOT NULL GENERATED ALWAYS AS (split_part(name, '/', 1)) STORED,
  seen_at  timestamptz NOT NULL DEFAULT now(),  -- when a daemon last knew it, within a minute
  state    text NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'half_open')),  -- of its circuit breaker
  reason   text,         -- this and the next columns are as in outbox.provider
  open_until timestamptz,
  prober   uuid,
  shut_at  timestamptz,
  refused_at timestamptz,
  refused_intent bigint,
  rendered text[] NOT NULL DEFAULT '{}'  -- fingerprints of the provider's configurations with which a request was rendered, the newest first
);
CREATE INDEX tool_provider ON outbox.tool (provider);

-- The state of a provider that all replicas share.
CREATE TABLE outbox.provider (
  name       text COLLATE "C" PRIMARY KEY,
  namespace  text COLLATE "C" CHECK (namespace <> ''),  -- part of the keys of new intents; null: the namespace in outbox.setting
  paused     boolean NOT NULL DEFAULT false,
  idle_until timestamptz NOT NULL DEFAULT '-infinity',  -- until then an enqueue notifies
  state      text NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'half_open')),  -- of the circuit breaker
  reason     text,         -- why it is not closed; null while it is
  open_until timestamptz,  -- the end of the cool-down; while half-open: the end of the prober's time
  prober     uuid,         -- the worker that tries a half-open provider
  shut_at    timestamptz,  -- since when it is not closed; null while it is
  refused_at timestamptz,  -- when it was first shut, since shut_at, for a reason that time does not cure
  refused_intent bigint    -- the intent of the last refusal for such a reason; null without one
) WITH (fillfactor = 10);

-- Every enqueue looks for lanes that wait. With this index updates of idle_until cannot be HOT, but they are rare.
CREATE INDEX provider_idle_until ON outbox.provider (idle_until);

-- An enqueue inserts a row and deletes it at once: the row only makes its trigger run at the commit. Vacuum finds
-- the table empty each time, and would truncate it each time, under a lock that producers wait for.
CREATE UNLOGGED TABLE outbox.wake_up (provider text NOT NULL) WITH (vacuum_truncate = off);

-- Logins that wait for results. Settlements notify until a row's time. A crash empties the table, and waiting
-- processes then poll.
CREATE UNLOGGED TABLE outbox.waiter (
  login text COLLATE "C" PRIMARY KEY,
  until timestamptz NOT NULL
) WITH (vacuum_truncate = off);

-- Append-only: one row for each repeated enqueue of a key.
CREATE TABLE outbox.duplicate (
  intent_id    bigint NOT NULL,
  same_payload boolean NOT NULL DEFAULT true,
  seen_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX duplicate_seen_at ON outbox.duplicate USING brin (seen_at) WITH (autosummarize = on);

-- A refused collision leaves no row, because the caller rolls back. Sequences do not roll back: last_value counts
-- the collisions, and names the intent of the last one.
CREATE SEQUENCE outbox.collisions MINVALUE 0;
CREATE SEQUENCE outbox.last_collision MINVALUE 0;
SELECT setval('outbox.collisions', 0), setval('outbox.last_collision', 0);

-- One row for each agent run that is rolled back or cancelled. While the row exists, the run takes no further
-- step.
CREATE TABLE outbox.saga (
  agent_run_id text COLLATE "C" PRIMARY KEY,
  cause        bigint,  -- the intent whose failure began the rollback; null: an operator decided
  state        text NOT NULL DEFAULT 'begun'
               CHECK (state IN ('begun', 'compensated', 'compensation_failed', 'resolved', 'cancelled')),
  epoch        int NOT NULL DEFAULT 1,  -- raised by every retry
  begun_at     timestamptz NOT NULL DEFAULT now(),
  ended_at     timestamptz,
  changed_by   text,  -- the operator who began, cancelled, retried or resolved it last, by the given name; reason is the operator's
  reason       text,
  login        text NOT NULL DEFAULT session_user,  -- of that operator, or else of the daemon that began it
  moves_at     timestamptz NOT NULL DEFAULT now(),  -- when the next pass looks at it; the settlement of a step can bring that forward
  passes       int NOT NULL DEFAULT 0,  -- passes begun since the last one that ended; above 0: one is under way, or died
  leased_until timestamptz,  -- by then the pass under way has ended or died; no index has this column, so that taking a saga is a HOT update
  plan         bigint[],  -- the steps that it undoes next, in this order; null: the next pass makes a plan
  place        int NOT NULL DEFAULT 1,  -- in the plan
  ready        jsonb  -- the last pass's decisions on the next places, by their number; the settlement of an undo follows them
) WITH (fillfactor = 50);  -- free room on the page keeps a step of the plan from writing to the indexes
ALTER TABLE outbox.saga
  ALTER plan SET STORAGE EXTERNAL, ALTER plan SET STATISTICS 0,
  ALTER ready SET STORAGE EXTERNAL, ALTER ready SET STATISTICS 0;
CREATE INDEX saga_moves ON outbox.saga (moves_at) WHERE state = 'begun';
CREATE INDEX saga_state ON outbox.saga (state, begun_at);

-- Runs with a completed or unknown step that was pruned while other intents of the run stayed. A saga cannot undo
-- a step that it does not see. The row is deleted with the last intent of its run.
CREATE TABLE outbox.forgotten (
  agent_run_id text COLLATE "C" PRIMARY KEY,
  pruned_at    timestamptz NOT NULL DEFAULT now()
);

-- Decisions that a human must make. An open incident pages. An acknowledged one has an owner. A resolved one is
-- over.
CREATE TABLE outbox.incident (
  id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind            text NOT NULL CHECK (kind IN ('outcome_unknown', 'compensation_failed', 'reversal_window_expired',
                                                'key_collision', 'unconfigured_provider', 'saga_stalled', 'refused_intent',
                                                'unknown_operation', 'first_replay',
                                                'credentials_refused', 'forbidden', 'misconfigured', 'history_changed')),
  intent_id       bigint NOT NULL,
  agent_run_id    text COLLATE "C" NOT NULL,
  detail          text,
  generation      int NOT NULL DEFAULT 1,  -- how often it was opened
  opened_at       timestamptz NOT NULL DEFAULT now(),
  acknowledged_at timestamptz,
  acknowledged_by text,
  reason          text,                    -- why it was acknowledged
  resolved_at     timestamptz,             -- its cause is gone
  resolved_by     text,
  login           text,                    -- the login that last acknowledged or resolved it
  UNIQUE (kind, intent_id)
);
-- Lists show the incidents that opened last. After an outage there may be a million of them.
CREATE INDEX incident_opened ON outbox.incident (opened_at, id);
CREATE INDEX incident_unresolved_opened ON outbox.incident (opened_at, id) WHERE resolved_at IS NULL;
CREATE INDEX incident_unresolved ON outbox.incident (kind, opened_at, id) WHERE resolved_at IS NULL;

-- +goose StatementBegin
-- An update of opened_at opens an incident again. An incident that is still open keeps its time.
CREATE FUNCTION outbox.reopen_incident() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF OLD.acknowledged_at IS NULL AND OLD.resolved_at IS NULL THEN
    NEW.opened_at := OLD.opened_at;
    RETURN NEW;
  END IF;
  NEW.generation := OLD.generation + 1;
  NEW.acknowledged_at := NULL;
  NEW.acknowledged_by := NULL;
  NEW.reason := NULL;
  NEW.resolved_at := NULL;
  NEW.resolved_by := NULL;
  RETURN NEW;
END $$;
-- +goose StatementEnd

CREATE TRIGGER reopen_incident BEFORE UPDATE OF opened_at ON outbox.incident
  FOR EACH ROW EXECUTE FUNCTION outbox.reopen_incident();

-- The last page to each channel about each opening of a group. A group is the incidents of one kind at one
-- provider, and is named by the first of them. The row exists before anything is sent.
CREATE TABLE outbox.page (
  incident_id bigint NOT NULL REFERENCES outbox.incident ON DELETE CASCADE,
  generation  int NOT NULL,
  channel     text COLLATE "C" NOT NULL,
  told        text CHECK (told IN ('open', 'acknowledged', 'resolved')),  -- the state of the last page; null: not known
  told_at     timestamptz,
  tried_at    timestamptz,
  left_until  timestamptz,             -- until then a page is being sent, or is not tried again
  tries       int NOT NULL DEFAULT 0,  -- since the last page that was sent
  sends       int NOT NULL DEFAULT 0,  -- counts sends, so that two senders notice each other
  count       bigint NOT NULL DEFAULT 1,  -- incidents that were open at the last try
  newest      timestamptz NOT NULL DEFAULT now(),  -- when the newest of those opened; all that opened by then belong to this opening
  PRIMARY KEY (incident_id, generation, channel)
);
CREATE INDEX page_standing ON outbox.page (channel) WHERE told IS DISTINCT FROM 'resolved';

-- The position up to which each growing source has been read.
CREATE TABLE outbox.watermark (
  name  text PRIMARY KEY,
  value bigint NOT NULL
);

-- +goose Down
DROP TABLE outbox.history, outbox.wake_up, outbox.waiter, outbox.watermark, outbox.page, outbox.incident, outbox.forgotten, outbox.saga, outbox.duplicate, outbox.provider, outbox.tool, outbox.fingerprint_key, outbox.worker,
           outbox.attempt, outbox.claim, outbox.queue, outbox.generation, outbox.intent, outbox.run, outbox.tenant, outbox.setting;
DROP SEQUENCE outbox.collisions, outbox.last_collision;
DROP FUNCTION outbox.reopen_incident, outbox.begin_limit, outbox.room_in_flight, outbox.queued_tenants, outbox.in_doubt, outbox.whereabouts;
