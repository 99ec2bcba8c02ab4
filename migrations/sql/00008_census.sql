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

-- What may have been applied and is still tried: the provider's memory of its key runs out.
CREATE INDEX queue_in_doubt ON outbox.queue (first_attempt_at) WHERE maybe_applied AND NOT lookup;
-- What waits for a human, the longest first.
CREATE INDEX incident_open ON outbox.incident (kind, opened_at) WHERE acknowledged_at IS NULL AND resolved_at IS NULL;

-- +goose Down
DROP INDEX outbox.incident_open, outbox.queue_in_doubt;
DROP TABLE outbox.census;
