-- Every change of a row of the outbox, in the order in which it was made. A
-- row's changes are made under its lock, so theirs is the order of commits.
CREATE SCHEMA history;
CREATE TABLE history.transition (
  seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  place     text NOT NULL,     -- the table
  change    text NOT NULL,     -- INSERT, UPDATE or DELETE
  intent_id bigint,
  attempt   int,
  worker    text,
  outcome   text,
  status    text,              -- of an attempt, or of a saga
  settled   boolean,           -- of an attempt: none is to follow
  late      boolean,           -- an attempt that tells of an effect which was on record as none
  closed    boolean,           -- of a claimed forward row that is to be sent: its run is being rolled back
  run       text               -- of a saga
);

-- What the claiming statement could see. Its trigger sees more: a saga that was
-- committed in between is nothing that the claim had to respect.
ALTER TABLE outbox.claim ADD COLUMN seen pg_snapshot DEFAULT pg_current_snapshot();

CREATE FUNCTION history.write() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  r record := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
  CASE TG_TABLE_NAME
  WHEN 'queue' THEN
    INSERT INTO history.transition (place, change, intent_id, attempt) VALUES ('queue', TG_OP, r.intent_id, r.attempt);
  WHEN 'claim' THEN
    INSERT INTO history.transition (place, change, intent_id, attempt, worker, closed)
    SELECT 'claim', TG_OP, h.intent_id, h.attempt, r.worker_id::text,
           TG_OP = 'INSERT' AND NOT h.lookup AND i.compensates IS NULL AND s.agent_run_id IS NOT NULL
             AND pg_visible_in_snapshot(s.xmin::text::xid8, r.seen)
    FROM unnest(r.intent_ids, r.attempts, r.lookups) AS h (intent_id, attempt, lookup)
    LEFT JOIN outbox.intent i ON i.id = h.intent_id LEFT JOIN outbox.saga s USING (agent_run_id);
  WHEN 'attempt' THEN
    INSERT INTO history.transition (place, change, intent_id, attempt, worker, outcome, status, settled, late)
    VALUES ('attempt', TG_OP, r.intent_id, r.attempt, coalesce(r.operator, r.worker), r.outcome, r.status, r.next_attempt_at IS NULL, r.error IS NOT DISTINCT FROM 'late');
  WHEN 'intent' THEN
    INSERT INTO history.transition (place, change, intent_id) VALUES ('intent', TG_OP, r.id);
  WHEN 'saga' THEN
    INSERT INTO history.transition (place, change, run, status) VALUES ('saga', TG_OP, r.agent_run_id, r.state);
  END CASE;
  RETURN NULL;
END $$;

CREATE TRIGGER history AFTER INSERT OR UPDATE OR DELETE ON outbox.intent  FOR EACH ROW EXECUTE FUNCTION history.write();
CREATE TRIGGER history AFTER INSERT OR UPDATE OR DELETE ON outbox.queue   FOR EACH ROW EXECUTE FUNCTION history.write();
CREATE TRIGGER history AFTER INSERT OR UPDATE OR DELETE ON outbox.claim   FOR EACH ROW EXECUTE FUNCTION history.write();
CREATE TRIGGER history AFTER INSERT OR UPDATE OR DELETE ON outbox.attempt FOR EACH ROW EXECUTE FUNCTION history.write();
CREATE TRIGGER history AFTER INSERT OR UPDATE OR DELETE ON outbox.saga    FOR EACH ROW EXECUTE FUNCTION history.write();
