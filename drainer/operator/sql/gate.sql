-- $1 provider, $2 whether it is paused from now on, $3 operator, $4 reason. One
-- that no worker has announced may be paused while rows wait for it.
WITH changed AS (
  INSERT INTO outbox.provider AS p (name, paused)
  SELECT $1::text, $2::boolean
  WHERE EXISTS (SELECT FROM outbox.provider WHERE name = $1::text)
     OR ($2::boolean AND EXISTS (SELECT FROM outbox.queue WHERE provider = $1::text))
  ON CONFLICT (name) DO UPDATE SET paused = excluded.paused WHERE p.paused <> excluded.paused
  RETURNING name
)
INSERT INTO outbox.operation (operator, action, provider, reason)
SELECT $3::text, CASE WHEN $2::boolean THEN 'pause' ELSE 'resume' END, name, $4::text FROM changed;
