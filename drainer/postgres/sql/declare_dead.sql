-- $1 workers, $2 the last heartbeat seen of each. Declares those dead whose heartbeat has not changed. That is final: a
-- worker that was declared dead can neither send heartbeats nor claim.
DELETE FROM outbox.worker w USING unnest($1::uuid[], $2::timestamptz[]) AS silent (worker_id, beat_at)
WHERE w.worker_id = silent.worker_id AND w.beat_at = silent.beat_at;
