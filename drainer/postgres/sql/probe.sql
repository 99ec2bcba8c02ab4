-- $1 worker, $2 provider, $3 seconds. After the cool-down one worker of the
-- fleet tries the provider with one row; if it dies, another does after that time.
UPDATE outbox.provider
SET state = 'half_open', prober = $1::uuid, open_until = clock_timestamp() + make_interval(secs => $3::float8)
WHERE name = $2::text AND NOT paused AND state <> 'closed' AND open_until <= clock_timestamp()
  AND EXISTS (SELECT FROM outbox.worker WHERE worker_id = $1::uuid)
  AND EXISTS (SELECT FROM outbox.queue WHERE provider = $2::text AND next_attempt_at <= now() AND via IS NULL);
