-- $1 workers, $2 the heartbeat that each stood still at. Death is decided here, once: a worker
-- that is declared dead can neither beat nor claim. One that has beaten meanwhile lives.
DELETE FROM outbox.worker w USING unnest($1::uuid[], $2::timestamptz[]) AS silent (worker_id, beat_at)
WHERE w.worker_id = silent.worker_id AND w.beat_at = silent.beat_at;
