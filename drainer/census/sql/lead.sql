-- $1 process, $2 seconds that it leads from now on, $3 seconds that a duplicate's transaction may take to commit.
-- The leading process stays the leader; another takes over once its time is over. It goes on counting where the last one stopped,
-- an hour ago at most, and what has piled up a minute at a time.
UPDATE outbox.census SET leader = $1::uuid, leads_until = now() + make_interval(secs => $2::float8)
WHERE leader = $1::uuid OR leads_until <= now()
RETURNING counted_until, greatest(counted_until, now() - interval '1 hour'),
          least(now() - make_interval(secs => $3::float8), greatest(counted_until, now() - interval '1 hour') + interval '1 minute'),
          collisions;
