-- $1 process, $2 for how many seconds it leads from now on, $3 how many seconds a duplicate's transaction may take to
-- commit. The leader stays the leader. Another process takes over once the leader's time is over. It goes on where the
-- last leader stopped counting, but at most an hour ago. Each sample counts at most a minute.
UPDATE outbox.census SET leader = $1::uuid, leads_until = now() + make_interval(secs => $2::float8)
WHERE leader = $1::uuid OR leads_until <= now()
RETURNING counted_until, greatest(counted_until, now() - interval '1 hour'),
          least(now() - make_interval(secs => $3::float8), greatest(counted_until, now() - interval '1 hour') + interval '1 minute'),
          collisions;
