-- Opens an incident if keys have collided since the last look, on the intent of the last collision. The
-- watermark's row lock lets only one look at a time do that.
WITH grown AS (
  INSERT INTO outbox.watermark AS w (name, value)
  SELECT 'collisions', last_value FROM outbox.collisions WHERE last_value > 0
  ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE w.value < excluded.value
  RETURNING name
)
INSERT INTO outbox.incident (kind, intent_id, agent_run_id)
SELECT 'key_collision', i.id, i.agent_run_id
FROM outbox.intent i
WHERE i.id = (SELECT last_value FROM outbox.last_collision) AND EXISTS (SELECT FROM grown)
ON CONFLICT (kind, intent_id) DO UPDATE SET opened_at = now();
