-- +goose Up

-- One row: the process that counts the rows of the tables, and the positions of the counts that only go forward.
CREATE TABLE outbox.census (
  one           boolean PRIMARY KEY DEFAULT true CHECK (one),
  leader        uuid,
  leads_until   timestamptz NOT NULL DEFAULT '-infinity',
  counted_until timestamptz NOT NULL DEFAULT now(),  -- duplicates that were seen by then are counted
  collisions    bigint NOT NULL                      -- how many are counted
) WITH (fillfactor = 10);
INSERT INTO outbox.census (collisions) SELECT last_value FROM outbox.collisions;
GRANT SELECT, UPDATE ON outbox.census TO outbox_drainer;
GRANT SELECT ON outbox.census TO outbox_operator, outbox_auditor;

-- The last hour, for the console: one row for each provider and minute, to which each daemon adds its own counts.
-- So the cost does not grow with the attempts, and the attempts need no index for it.
CREATE TABLE outbox.minute (
  at        timestamptz NOT NULL,  -- the beginning of the minute
  provider  text COLLATE "C" NOT NULL,
  completed bigint NOT NULL DEFAULT 0,  -- attempts, by outcome
  refused   bigint NOT NULL DEFAULT 0,  -- for good
  busy      bigint NOT NULL DEFAULT 0,  -- the provider was out of reach or had no room
  in_doubt  bigint NOT NULL DEFAULT 0,
  took      bigint[] NOT NULL DEFAULT '{}',  -- how many attempts took up to 1 ms, 2 ms, 4 ms and so on; the last: longer
  oldest    float8 NOT NULL DEFAULT 0,  -- the largest number of seconds for which the oldest row had been due
  PRIMARY KEY (at, provider)
);

-- Changes of circuit breakers, the newest 50 of each.
CREATE TABLE outbox.breaker_change (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text COLLATE "C" NOT NULL,  -- of the provider, or provider/operation
  state      text NOT NULL,
  reason     text,
  changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX breaker_change_name ON outbox.breaker_change (name, id);

-- +goose StatementBegin
CREATE FUNCTION outbox.note_breaker() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.breaker_change (name, state, reason) VALUES (NEW.name, NEW.state, NEW.reason);
  DELETE FROM outbox.breaker_change WHERE name = NEW.name
    AND id <= (SELECT id FROM outbox.breaker_change WHERE name = NEW.name ORDER BY id DESC OFFSET 50 LIMIT 1);
  RETURN NULL;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION outbox.note_breaker FROM PUBLIC;
CREATE TRIGGER note_breaker AFTER UPDATE OF state ON outbox.provider FOR EACH ROW
  WHEN (NEW.state <> OLD.state) EXECUTE FUNCTION outbox.note_breaker();
CREATE TRIGGER note_breaker AFTER UPDATE OF state ON outbox.tool FOR EACH ROW
  WHEN (NEW.state <> OLD.state) EXECUTE FUNCTION outbox.note_breaker();
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.minute TO outbox_drainer;
GRANT SELECT ON outbox.breaker_change TO outbox_drainer, outbox_operator, outbox_auditor;
GRANT SELECT ON outbox.minute TO outbox_operator, outbox_auditor;

-- Rows that may have been applied and are still retried: the provider forgets their keys after a time.
CREATE INDEX queue_in_doubt ON outbox.queue (first_attempt_at) WHERE maybe_applied AND NOT lookup;
-- Finds the unknown intents whose lookup may still find the outcome, without reading the other pending rows.
CREATE INDEX queue_lookup ON outbox.queue (intent_id) WHERE lookup;
-- Incidents that wait for a human, the longest first.
CREATE INDEX incident_open ON outbox.incident (kind, opened_at) WHERE acknowledged_at IS NULL AND resolved_at IS NULL;

-- +goose Down
DROP INDEX outbox.incident_open, outbox.queue_lookup, outbox.queue_in_doubt;
DROP TRIGGER note_breaker ON outbox.tool;
DROP TRIGGER note_breaker ON outbox.provider;
DROP FUNCTION outbox.note_breaker;
DROP TABLE outbox.breaker_change, outbox.minute, outbox.census;
