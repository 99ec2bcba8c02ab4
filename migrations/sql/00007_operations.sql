-- +goose Up

-- Append-only: what operators did to a provider or to a whole run. What they
-- do to an intent is in its own history.
CREATE TABLE outbox.operation (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  done_at      timestamptz NOT NULL DEFAULT now(),
  operator     text NOT NULL,  -- 'operator:NAME', as in a history
  action       text NOT NULL CHECK (action IN ('pause', 'resume', 'cancel_run')),
  provider     text COLLATE "C",
  agent_run_id text COLLATE "C",
  reason       text NOT NULL,
  CHECK (num_nonnulls(provider, agent_run_id) = 1)
);
CREATE INDEX operation_provider ON outbox.operation (provider, id) WHERE provider IS NOT NULL;

-- Runs that were closed lately: what of them is claimed already must not be sent.
CREATE INDEX saga_begun_at ON outbox.saga (begun_at);

GRANT SELECT, INSERT ON outbox.operation TO outbox_drainer;

-- +goose Down
DROP INDEX outbox.saga_begun_at;
DROP TABLE outbox.operation;
