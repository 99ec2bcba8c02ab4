SELECT (SELECT count(*) FROM agent_state),
       count(*),
       count(*) FILTER (WHERE status = 'pending' AND outcome NOT IN ('lost', 'released')),
       count(*) FILTER (WHERE outcome = 'lost'),
       count(*) FILTER (WHERE outcome = 'released'),
       (SELECT count(*) FROM outbox.duplicate),
       (SELECT last_value FROM outbox.collisions)
FROM outbox.attempt WHERE worker <> 'saga';  -- a saga sends nothing
