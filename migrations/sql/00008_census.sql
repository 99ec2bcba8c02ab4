-- +goose Up

-- One row: which process counts what the tables hold, and how far it has got with what is counted once.
CREATE TABLE outbox.census (
  one           boolean PRIMARY KEY DEFAULT true CHECK (one),
  leader        uuid,
  leads_until   timestamptz NOT NULL DEFAULT '-infinity',
  counted_until timestamptz NOT NULL DEFAULT now(),  -- duplicates that were seen by then are counted
  collisions    bigint NOT NULL                      -- so many are counted
) WITH (fillfactor = 10);
INSERT INTO outbox.census (collisions) SELECT last_value FROM outbox.collisions;
GRANT SELECT, UPDATE ON outbox.census TO outbox_drainer;
GRANT SELECT ON outbox.census TO outbox_operator, outbox_auditor;

-- The last hour, for the console: a row a provider and minute, to which each daemon adds what it counted itself. So
-- its cost does not grow with the attempts, and no index of them is needed.
CREATE TABLE outbox.minute (
  at        timestamptz NOT NULL,  -- when it began
  provider  text COLLATE "C" NOT NULL,
  completed bigint NOT NULL DEFAULT 0,  -- attempts, by how they ended
  refused   bigint NOT NULL DEFAULT 0,  -- for good
  busy      bigint NOT NULL DEFAULT 0,  -- the provider was out of reach or had no room
  in_doubt  bigint NOT NULL DEFAULT 0,
  took      bigint[] NOT NULL DEFAULT '{}',  -- how many of them took up to 1 ms, 2 ms, 4 ms and so on; the last: longer
  oldest    float8 NOT NULL DEFAULT 0,  -- for how many seconds the oldest row had been due, at most
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

-- What may have been applied and is still tried: the provider's memory of its key runs out.
CREATE INDEX queue_in_doubt ON outbox.queue (first_attempt_at) WHERE maybe_applied AND NOT lookup;
-- What waits for a human, the longest first.
CREATE INDEX incident_open ON outbox.incident (kind, opened_at) WHERE acknowledged_at IS NULL AND resolved_at IS NULL;

-- +goose Down
DROP INDEX outbox.incident_open, outbox.queue_in_doubt;
DROP TRIGGER note_breaker ON outbox.tool;
DROP TRIGGER note_breaker ON outbox.provider;
DROP FUNCTION outbox.note_breaker;
DROP TABLE outbox.breaker_change, outbox.minute, outbox.census;
