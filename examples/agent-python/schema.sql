CREATE SCHEMA agent;

-- How far each agent of a run has come. The row is written in the transaction of the turn's intent.
CREATE TABLE agent.progress (
  run    text,
  role   text,
  starts int NOT NULL DEFAULT 0,
  turn   int NOT NULL DEFAULT 0,
  heard  text[] NOT NULL DEFAULT '{}',  -- what the model was told
  PRIMARY KEY (run, role)
);
