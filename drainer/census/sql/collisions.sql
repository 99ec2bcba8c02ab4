SELECT c.last_value, coalesce((SELECT provider FROM outbox.intent WHERE id = l.last_value), '')
FROM outbox.collisions c, outbox.last_collision l;
