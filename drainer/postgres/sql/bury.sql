-- Death is decided here, once: a buried worker can neither beat nor claim.
DELETE FROM outbox.worker WHERE beat_at < now() - make_interval(secs => $1::float8);
